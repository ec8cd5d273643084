package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"

	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/etcd"
)

func openEtcd(ctx context.Context, c registryConfig, o registryOpening) (tokens.Maintained, error) {
	var trust *tls.Config
	if strings.HasPrefix(c.Endpoints[0], "https://") {
		var err error
		if trust, err = c.TLS.load(); err != nil {
			return nil, fmt.Errorf("registry: tls: %w", err)
		}
	}
	r, err := etcd.Open(ctx, etcd.Options{
		Endpoints: c.Endpoints, Prefix: c.Prefix, TLS: trust, Username: c.Username, Password: string(c.Password),
		Create: o.create, Replaces: o.replaces, Repair: o.repair, Lease: c.Lease, AcceptRestored: o.raising, Log: o.log,
	})
	if errors.Is(err, etcd.ErrMissing) {
		err = fmt.Errorf("%w: %w", errNoRegistry, err)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}
