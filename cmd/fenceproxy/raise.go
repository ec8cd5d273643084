package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/sqlite"
	"github.com/spf13/cobra"
)

func newRaiseCommand() *cobra.Command {
	var file, allBy string
	cmd := &cobra.Command{
		Use:   "raise --all-by N",
		Short: "Raise the highest token of every resource by N, while no proxy uses the registry",
		Long: `Raises every recorded token by N, all of them in one step, or none. For a registry that has forgotten tokens: one that
was restored from a backup or rebuilt. Every holder is shut out whose token is not at least N above what is recorded.

Every proxy is stopped for it, or does without the registry, as all do that share one that was restored. For one resource of a running proxy there is fenceproxy fences raise.`,
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
	if s.audit != nil {
		s.audit.Add(cmd.Context(), audit.Record{
			Kind: audit.KindRaise, Operation: "raise --all-by", Token: int64(by),
			Detail: fmt.Sprintf("the tokens of all %d resources of registry %s were raised by %d", raised, id, by),
		})
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "The tokens of %d resources were raised by %d, in registry %s.\n", raised, by, id)
	if err == nil && raised > 0 {
		cmd.PrintErrln("Next: see that the lock service counts on from above the new ones (fenceproxy fences list, once the proxy runs), start\n" +
			"fenceproxy serve, and let every holder take its lock anew. Who comes with a token from before is refused.")
	}
	return err
}

// openRegistryAlone opens what a repair of the registry needs, without the backends: they may be out of reach. A registry that has forgotten tokens is opened,
// too: this is what it is to be repaired with.
func (s *state) openRegistryAlone(ctx context.Context, c *config, log *slog.Logger) (err error) {
	var lockErr error
	if s.lock, lockErr = sqlite.Lock(c.Data, "fenceproxy raise"); lockErr != nil && !c.Registry.shared() {
		return offline(lockErr)
	}
	s.registry, err = openRegistryOf(ctx, c, s.lock, registryOpening{raising: true, log: log})
	if errors.Is(err, errNoRegistry) {
		return fmt.Errorf("%w; if it is lost, `fenceproxy rebuild` makes a new one from the stamps of the objects", err)
	} else if err != nil {
		return err
	}
	if c.Registry.ID != "" && c.Registry.ID != s.registry.Start().ID {
		return fmt.Errorf("the configuration says that the token registry is %s (registry.id), and the one in %s is %s", c.Registry.ID, c.Registry.place(), s.registry.Start().ID)
	}
	if s.lock == nil && c.Registry.Driver != postgresDriver {
		log.Warn("this raise is in no audit log", "cause", lockErr)
		return nil
	}
	return s.openAudit(ctx, c, instanceOf("raise"), log)
}

// offline says of a lock that another process has that this command does not run beside a proxy.
func offline(err error) error {
	if locked := (*sqlite.LockedError)(nil); errors.As(err, &locked) {
		return fmt.Errorf("this works on the registry of a proxy that is stopped: %w", err)
	}
	return err
}
