package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/postgres"
)

func openPostgres(ctx context.Context, c registryConfig, o registryOpening) (tokens.Maintained, error) {
	options := postgres.Options{
		DSN: string(c.DSN), Create: o.create, Replaces: o.replaces, Repair: o.repair, Lease: c.Lease, Failover: c.Failover, Log: o.log,
	}
	r, err := postgres.Open(ctx, options)
	if o.raising && errors.Is(err, postgres.ErrRestored) { // not before it says so: a raise ends all instances then, also those that run
		o.log.Warn("this takes it into use again", "cause", err)
		options.AcceptRestored = true
		r, err = postgres.Open(ctx, options)
	}
	if errors.Is(err, postgres.ErrMissing) {
		err = fmt.Errorf("%w: %w", errNoRegistry, err)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}
