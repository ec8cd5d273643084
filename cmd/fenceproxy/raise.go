package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/sqlite"
	"github.com/spf13/cobra"
)

func newRaiseCommand() *cobra.Command {
	var file, allBy string
	cmd := &cobra.Command{
		Use:   "raise --all-by N",
		Short: "Raise the highest token of every resource by N, while no proxy runs",
		Long: `Raises every recorded token by N, all of them in one step, or none. For a registry that has forgotten tokens: one that
was restored from a backup or rebuilt. Every holder is shut out whose token is not at least N above what is recorded.

The proxy is stopped for it. For one resource of a running proxy there is fenceproxy fences raise.`,
		Example: "  fenceproxy raise --all-by 1000",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			by, err := tokens.ParseToken(allBy)
			if err != nil {
				return fmt.Errorf("--all-by: %w", err)
			}
			c, err := loadConfig(file, os.LookupEnv)
			if err != nil {
				return err
			}
			return raiseAll(cmd, c, by)
		},
	}
	addConfigFlag(cmd, &file)
	cmd.Flags().StringVar(&allBy, "all-by", "", "by how much: a whole number from 1 on (required)")
	_ = cmd.MarkFlagRequired("all-by")
	return cmd
}

func raiseAll(cmd *cobra.Command, c *config, by tokens.Token) (err error) {
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	s := &state{}
	defer func() { err = errors.Join(err, s.close(log)) }()
	if err := s.openRegistryAlone(cmd.Context(), c, log); err != nil {
		return err
	}
	switch repair, err := s.registry.Repair(cmd.Context()); {
	case err != nil:
		return err
	case repair == tokens.RepairNew || repair == tokens.RepairKnown:
		return errors.New("a rebuild of the token registry has not come to its end, and no margin helps where tokens are missing: run `fenceproxy rebuild` first. Nothing was raised")
	}
	id := s.registry.Start().ID
	raised, err := s.registry.RaiseAll(cmd.Context(), by)
	if err != nil {
		return err
	}
	s.audit.Add(cmd.Context(), audit.Record{
		Kind: audit.KindRaise, Operation: "raise --all-by", Token: int64(by),
		Detail: fmt.Sprintf("the tokens of all %d resources of registry %s were raised by %d", raised, id, by),
	})
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "The tokens of %d resources were raised by %d, in registry %s.\n", raised, by, id)
	if err == nil && raised > 0 {
		cmd.PrintErrln("Next: see that the lock service counts on from above the new ones (fenceproxy fences list, once the proxy runs), start\n" +
			"fenceproxy serve, and let every holder take its lock anew. Who comes with a token from before is refused.")
	}
	return err
}

// openRegistryAlone opens what a repair of the registry needs, without the backends: they may be out of reach.
func (s *state) openRegistryAlone(ctx context.Context, c *config, log *slog.Logger) (err error) {
	if s.lock, err = sqlite.Lock(c.Data, "fenceproxy raise"); err != nil {
		return offline(err)
	}
	registry, err := sqlite.Open(ctx, s.lock, sqlite.Options{})
	if errors.Is(err, sqlitedb.ErrMissing) {
		return fmt.Errorf("%w; if it is lost, `fenceproxy rebuild` makes a new one from the stamps of the objects", err)
	} else if err != nil {
		return err
	}
	s.registry = registry
	s.audit, err = audit.Open(ctx, filepath.Join(c.Data, auditFile), audit.Options{Keep: c.AuditKeep, Log: log})
	return err
}

// offline says of a lock that another process has that this command does not run beside a proxy.
func offline(err error) error {
	if locked := (*sqlite.LockedError)(nil); errors.As(err, &locked) {
		return fmt.Errorf("this works on the registry of a proxy that is stopped: %w", err)
	}
	return err
}
