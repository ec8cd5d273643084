package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/postgres"
)

func openPostgres(ctx context.Context, c registryConfig, o registryOpening) (tokens.Maintained, error) {
	r, err := postgres.Open(ctx, postgres.Options{
		DSN: string(c.DSN), Create: o.create, Replaces: o.replaces, Repair: o.repair, Lease: c.Lease, Failover: c.Failover,
		AcceptRestored: o.acceptRestored, Log: o.log,
	})
	if errors.Is(err, postgres.ErrMissing) {
		err = fmt.Errorf("%w: %w", errNoRegistry, err)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}
