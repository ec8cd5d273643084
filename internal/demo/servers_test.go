package demo

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestServers: each starts, answers, and is gone with the stage.
func TestServers(t *testing.T) {
	stage := func(t *testing.T, programs []string, start func(ctx context.Context, s *Stage) (*Process, error)) {
		t.Parallel()
		if err := (&Stage{}).Need(programs...); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
		var p *Process
		var dir string
		err := Play(context.Background(), Options{Out: &bytes.Buffer{}}, func(ctx context.Context, s *Stage) (err error) {
			dir = s.Dir
			p, err = start(ctx, s)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		(&scene{dir, []int{p.PID, p.PID}}).gone(t)
	}
	t.Run("Redis", func(t *testing.T) {
		stage(t, []string{"redis-server", "redis-cli"}, func(ctx context.Context, s *Stage) (*Process, error) {
			r, err := s.Redis(ctx)
			if err != nil {
				return nil, err
			}
			if answer, err := r.Do(ctx, "SET", "k", "v"); answer != ok || err != nil {
				t.Errorf("SET: %q, %v", answer, err)
			}
			if answer, err := r.Do(ctx, "NONSENSE"); err == nil && !strings.Contains(answer, "ERR") {
				t.Errorf("nonsense: %q", answer)
			}
			return r.Process, nil
		})
	})
	t.Run("etcd", func(t *testing.T) {
		stage(t, []string{"etcd"}, func(ctx context.Context, s *Stage) (*Process, error) {
			e, err := s.Etcd(ctx)
			if err != nil {
				return nil, err
			}
			return e.Process, nil
		})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		stage(t, []string{"postgres"}, func(ctx context.Context, s *Stage) (*Process, error) {
			p, err := s.Postgres(ctx)
			if err != nil {
				return nil, err
			}
			conn, err := pgx.Connect(ctx, p.DSN)
			if err != nil {
				return nil, err
			}
			stranger := conn.Config()
			stranger.Password = "another"
			if other, err := pgx.ConnectConfig(ctx, stranger); err == nil {
				t.Error("it lets in who does not know its password")
				_ = other.Close(ctx)
			}
			return p.Process, conn.Close(ctx)
		})
	})
	t.Run("ZooKeeper", func(t *testing.T) {
		stage(t, []string{"zookeeper", "java"}, func(ctx context.Context, s *Stage) (*Process, error) {
			z, err := s.ZooKeeper(ctx)
			if err != nil {
				return nil, err
			}
			return z.Process, nil
		})
	})
}
