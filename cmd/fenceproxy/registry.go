package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
	"github.com/fenceproxy/fenceproxy/proxy/audit"
	auditpg "github.com/fenceproxy/fenceproxy/proxy/audit/postgres"
	"github.com/fenceproxy/fenceproxy/tokens"
	"github.com/fenceproxy/fenceproxy/tokens/sqlite"
)

// openTime bounds the opening of a registry that other machines keep.
const openTime = time.Minute

// errNoRegistry says that there is no registry where the configuration says, and that none was to be made.
var errNoRegistry = errors.New("there is no token registry")

// A registryOpening says how a registry may be opened.
type registryOpening struct {
	create, replaces bool          // one that is missing is made, and in the place of a lost one
	repair           tokens.Repair // of one that is made
	raising          bool          // one that may have forgotten tokens is opened, too, to have all of them raised
	log              *slog.Logger
}

// openRegistryOf opens the registry that the configuration names. It fails with errNoRegistry where it is missing. The lock is that of the data directory;
// only sqlite needs it.
func openRegistryOf(ctx context.Context, c *config, lock *sqlite.DirLock, o registryOpening) (tokens.Maintained, error) {
	if c.Registry.shared() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, openTime)
		defer cancel()
	}
	switch c.Registry.Driver {
	case postgresDriver:
		return openPostgres(ctx, c.Registry, o)
	case etcdDriver:
		return openEtcd(ctx, c.Registry, o)
	}
	r, err := sqlite.Open(ctx, lock, sqlite.Options{Create: o.create, Replaces: o.replaces, Repair: o.repair})
	if errors.Is(err, sqlitedb.ErrMissing) {
		err = fmt.Errorf("%w: %w", errNoRegistry, err)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// openRegistry lets a new registry be made only where none is missing.
func (s *state) openRegistry(ctx context.Context, c *config, f serveFlags, log *slog.Logger) (err error) {
	before, err := s.evidence(c)
	if err != nil {
		return err
	}
	s.registry, err = openRegistryOf(ctx, c, s.lock, registryOpening{create: before == "" || f.newRegistry, replaces: before != "", repair: s.repair, log: log})
	switch {
	case !errors.Is(err, errNoRegistry) || f.newRegistry:
		return err
	case c.Registry.shared():
		return fmt.Errorf("the token registry is missing: there is none in %s, but %s. Without it every old token would be let in. "+
			"Restore it, or name the right place under `registry:`; if it is lost, `fenceproxy rebuild` makes a new one from the stamps of the objects, "+
			"and `serve --new-registry` an empty one", c.Registry.place(), before)
	}
	return fmt.Errorf("the token registry is missing: there is none in %s, but %s. Without it every old token would be let in. "+
		"Restore %s, or name the directory it is in with `data:`; if it is lost, `fenceproxy rebuild` makes a new one from the stamps of the objects, "+
		"and `serve --new-registry` an empty one",
		c.Data, before, filepath.Join(c.Data, sqlite.FileName))
}

// evidence says what shows that there was a registry before, "" if nothing does.
func (s *state) evidence(c *config) (string, error) {
	for name, store := range s.stores {
		id, err := store.RegistryID()
		if err != nil {
			return "", err
		}
		if id != "" {
			return fmt.Sprintf("the objects of backend %s are fenced by registry %s", name, id), nil
		}
	}
	if c.Registry.ID != "" {
		return fmt.Sprintf("the configuration says that it is %s (registry.id)", c.Registry.ID), nil
	}
	switch id, err := joinedRegistry(c.Data); {
	case err != nil:
		return "", err
	case id != "":
		return fmt.Sprintf("the data directory %s was served with registry %s", c.Data, id), nil
	}
	files := map[string]string{auditFile: "its audit log is there"}
	if c.Registry.shared() {
		files = map[string]string{
			auditFile:       "there is an audit log in " + c.Data,
			sqlite.FileName: "the data directory " + c.Data + " has one of its own, " + sqlite.FileName,
		}
	}
	for _, name := range []string{sqlite.FileName, auditFile} {
		if files[name] == "" {
			continue
		}
		_, err := os.Stat(filepath.Join(c.Data, name))
		if err == nil {
			return files[name], nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", nil
}

// joinedFile is where the data directory keeps the id of the shared registry that it was served with.
const joinedFile = "registry-id"

var errJoinedDamaged = errors.New("is damaged")

// joinedRegistry is that id; "" if there is none.
func joinedRegistry(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, joinedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(text))
	if !registryIDPattern.MatchString(id) {
		return "", fmt.Errorf("%s %w: it should have the id of the token registry in it, which the log of each start names", filepath.Join(dir, joinedFile), errJoinedDamaged)
	}
	return id, nil
}

// joinRegistry writes the id. If we crash before the rename, the old one is there, and after it the new one.
func joinRegistry(dir, id string) (err error) {
	f, err := os.CreateTemp(dir, writeProbe+"*") // fsck removes it, should we crash
	if err != nil {
		return err
	}
	_, err = f.WriteString(id + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, joinedFile))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// bindData lets the data directory be served with one registry only: with another one in its place every old token would be let in.
func (s *state) bindData(c *config, f serveFlags, log *slog.Logger) error {
	id := s.registry.Start().ID
	if c.Registry.ID != "" && c.Registry.ID != id {
		return fmt.Errorf("the configuration says that the token registry is %s (registry.id), and the one in %s is %s: name the right place under `registry:`, or change registry.id",
			c.Registry.ID, c.Registry.place(), id)
	}
	joined, err := joinedRegistry(c.Data)
	if err != nil {
		return err
	}
	left, err := s.leftRegistry(c, joined)
	if err != nil {
		return err
	}
	meant := f.newRegistry || slices.Contains(f.adopt, joined) || slices.Contains(s.registry.Adopted(), joined)
	switch {
	case left != "" && !meant:
		return fmt.Errorf("%s, and the one in %s is %s: name the right one under `registry:`; if that from before is lost, "+
			"`serve --new-registry` takes this one from now on, and forgets the tokens of the other", left, c.Registry.place(), id)
	case left != "":
		log.Warn("this data directory has another registry from now on, which does not know the tokens of the one before", "was", joined, "now", id)
	}
	switch {
	case c.Registry.shared() && joined != id:
		return joinRegistry(c.Data, id)
	case !c.Registry.shared() && joined != "":
		return errors.Join(os.Remove(filepath.Join(c.Data, joinedFile)), syncDir(c.Data))
	}
	return nil
}

// leftRegistry says that the data directory was served with another registry; "" if it was not.
func (s *state) leftRegistry(c *config, joined string) (string, error) {
	switch {
	case joined == s.registry.Start().ID:
		return "", nil
	case joined != "":
		return fmt.Sprintf("the data directory %s was served with registry %s", c.Data, joined), nil
	case !c.Registry.shared():
		return "", nil
	}
	_, err := os.Stat(filepath.Join(c.Data, sqlite.FileName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return fmt.Sprintf("the data directory %s was served with a registry of its own, %s", c.Data, sqlite.FileName), err
}

// openAudit opens the audit log: with PostgreSQL beside the registry, where every proxy shows the records of all; else in the data directory.
func (s *state) openAudit(ctx context.Context, c *config, instance string, log *slog.Logger) (err error) {
	o := audit.Options{Keep: c.AuditKeep, Log: log, Instance: instance}
	if c.Registry.Driver != postgresDriver {
		s.audit, err = audit.Open(ctx, filepath.Join(c.Data, auditFile), o)
		return err
	}
	store, err := auditpg.Open(ctx, string(c.Registry.DSN))
	if err != nil {
		return err
	}
	s.audit = audit.New(store, o)
	return nil
}

// alone returns when no other proxy runs with the registry, for what must not be done beside one. With sqlite the lock of the data directory has seen to it.
func alone(ctx context.Context, r tokens.Maintained, log *slog.Logger) error {
	shared, ok := r.(interface{ Alone(context.Context) error })
	if !ok {
		return nil
	}
	log.Info("looking whether a proxy runs with this registry, for up to two leases")
	if err := shared.Alone(ctx); err != nil {
		return fmt.Errorf("%w: stop all of them first. Nothing was changed", err)
	}
	return nil
}
