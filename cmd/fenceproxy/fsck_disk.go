package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fenceproxy/fenceproxy/backends/file"
	"github.com/fenceproxy/fenceproxy/internal/sqlitedb"
	"github.com/fenceproxy/fenceproxy/proxy"
	"github.com/fenceproxy/fenceproxy/proxy/audit"
	"github.com/fenceproxy/fenceproxy/tokens/sqlite"
)

// A diskCheck is one run of fsck. Everything it looks at stays locked until it is closed.
type diskCheck struct {
	config   *config
	lock     *sqlite.DirLock
	stores   map[string]*file.Checker // of the backends whose root is there
	registry sqlite.Checked
	findings []finding
}

// fsck checks, and repairs if it is to. It tells findings in the order in which they were found.
func fsck(ctx context.Context, c *config, f fsckFlags) (_ []finding, err error) {
	d := &diskCheck{config: c, stores: map[string]*file.Checker{}, findings: []finding{}}
	defer func() { err = errors.Join(err, d.close()) }()
	if d.lock, err = lockToCheck(c.Data); err != nil {
		return nil, err
	}
	if err := d.openStores(f); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{d.checkData, d.checkRegistry, d.checkAudit, d.checkStores, d.checkUploads} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	if f.repair {
		d.repair(ctx)
	}
	return d.findings, nil
}

func lockToCheck(dir string) (*sqlite.DirLock, error) {
	lock, err := sqlite.Lock(dir, "fsck")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no data directory %s: nothing was served with this configuration yet, or `data:` names another one", dir)
	}
	return lock, err
}

func (d *diskCheck) openStores(f fsckFlags) error {
	for _, b := range d.config.Backends {
		if b.Type != "file" {
			continue
		}
		store, err := file.OpenCheck(b.Root, file.Options{UnsafeNetworkFS: f.unsafeNetworkFS})
		switch {
		case errors.Is(err, fs.ErrNotExist):
			d.find(file.Note, "there are no objects: the root of backend "+b.Name+" does not exist, and the next start makes it", b.Root, "if its disk is not mounted, mount it")
			continue
		case errors.Is(err, file.ErrLocked):
			return fmt.Errorf("backend %s: %w: stop that first", b.Name, err)
		case err != nil:
			return fmt.Errorf("backend %s: %w", b.Name, err)
		}
		d.stores[b.Name] = store
	}
	return nil
}

func (d *diskCheck) close() error {
	var errs []error
	for _, s := range d.stores {
		errs = append(errs, s.Close())
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Release())
	}
	return errors.Join(errs...)
}

func (d *diskCheck) find(l file.Level, what, where, repair string) {
	d.findings = append(d.findings, finding{Level: l, What: what, Where: where, Repair: repair})
}

func (d *diskCheck) mend(what, where, repair string, do func(context.Context) error) {
	d.findings = append(d.findings, finding{Level: file.Mend, What: what, Where: where, Repair: repair, mend: do})
}

// repair does what was told, and goes on where something fails. What was not done because ctx ended failed, too.
func (d *diskCheck) repair(ctx context.Context) {
	for i := range d.findings {
		f := &d.findings[i]
		if f.mend == nil {
			continue
		}
		err := ctx.Err()
		if err == nil {
			err = f.mend(ctx)
		}
		if f.Repaired = err == nil; err != nil {
			f.Failed = err.Error()
		}
	}
}

// checkData looks for what processes that were killed have left in the data directory.
func (d *diskCheck) checkData(context.Context) error {
	left, err := sqlitedb.Leftovers(filepath.Join(d.config.Data, sqlite.FileName))
	if err != nil {
		return err
	}
	more, err := sqlitedb.Leftovers(filepath.Join(d.config.Data, auditFile))
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(d.config.Data)
	if err != nil {
		return err
	}
	spooled, err := os.ReadDir(filepath.Join(d.config.Data, spoolDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	left = append(left, more...)
	for _, e := range spooled {
		left = append(left, filepath.Join(d.config.Data, spoolDir, e.Name()))
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), writeProbe) && e.Type().IsRegular() {
			left = append(left, filepath.Join(d.config.Data, e.Name()))
		}
	}
	for _, path := range left {
		d.mend("a file that a process did not come to remove", path, "remove it", func(context.Context) error { return os.Remove(path) })
	}
	return nil
}

const (
	writeProbe = ".write-probe-" // what the names begin with of the files that makeDataDir makes and removes
	spoolDir   = "spool"         // holds bodies that are on their way to a store; each has a name for a moment only
)

func (d *diskCheck) checkRegistry(ctx context.Context) (err error) {
	if d.config.Registry.shared() {
		return d.checkJoined()
	}
	path := filepath.Join(d.config.Data, sqlite.FileName)
	d.registry, err = sqlite.Check(ctx, d.config.Data)
	unfinished := err == nil && d.registry.ID == "" && len(d.registry.Problems) == 0 // by a first start that was killed: it counts as missing
	if errors.Is(err, sqlitedb.ErrMissing) || unfinished {
		return d.checkMissing(path)
	}
	return d.tellDatabase(path, d.registry.Checked, err, "restore a backup and raise the marks: docs/registry-sqlite.md")
}

// checkJoined looks at what the data directory remembers of a registry that is elsewhere. That one is not asked: proxies run over it.
func (d *diskCheck) checkJoined() error {
	path := filepath.Join(d.config.Data, joinedFile)
	id, err := joinedRegistry(d.config.Data)
	switch pinned := d.config.Registry.ID; {
	case errors.Is(err, errJoinedDamaged):
		d.find(file.Error, err.Error()+": serve cannot start", path, "write the id of the registry into it")
		return nil
	case err != nil:
		return err
	case id != "" && pinned != "" && id != pinned:
		d.find(file.Error, fmt.Sprintf("the data directory was served with registry %s, and the configuration says %s: serve cannot start", id, pinned), path, "name the right one under `registry:`")
	}
	d.find(file.Note, "the token registry is shared with other proxies, and is not looked at here: it is "+d.config.Registry.place(), d.config.File, "")
	return nil
}

// checkMissing judges a registry that is not there by what it has left elsewhere.
func (d *diskCheck) checkMissing(path string) error {
	what := ""
	for name, store := range d.stores {
		if id, err := store.RegistryID(); err != nil || id != "" {
			what = "the token registry is missing, and the objects of backend " + name + " are fenced by one"
		}
	}
	if _, err := os.Stat(filepath.Join(d.config.Data, auditFile)); err == nil && what == "" {
		what = "the token registry is missing, and its audit log is there"
	}
	if what == "" {
		d.find(file.Note, "there is no token registry yet: the next start makes one", path, "")
		return nil
	}
	d.find(file.Error, what+": serve cannot start", path, "restore it; if it is lost, raise the marks after `serve --new-registry`")
	return nil
}

func (d *diskCheck) checkAudit(ctx context.Context) error {
	if d.config.Registry.Driver == postgresDriver {
		return nil // it is there, too
	}
	path := filepath.Join(d.config.Data, auditFile)
	found, err := audit.Check(ctx, path)
	if errors.Is(err, sqlitedb.ErrMissing) {
		d.find(file.Note, "there is no audit log: the next start makes one", path, "")
		return nil
	}
	return d.tellDatabase(path, found, err, "move it away: the next start makes a new audit log")
}

// tellDatabase turns what was found in a SQLite file into findings, and what says that it is not ours.
func (d *diskCheck) tellDatabase(path string, found sqlitedb.Checked, err error, byHand string) error {
	if errors.Is(err, sqlitedb.ErrForeign) {
		d.find(file.Error, err.Error(), path, byHand)
		return nil
	} else if err != nil {
		return err
	}
	for _, p := range found.Problems {
		where := path
		if p.Row != "" {
			where += ": " + p.Row
		}
		d.find(file.Error, p.What, where, byHand)
	}
	return nil
}

func (d *diskCheck) checkStores(ctx context.Context) (err error) {
	stamps := &stampCheck{diskCheck: d}
	if d.registry.ID != "" && len(d.registry.Problems) == 0 {
		if stamps.marks, err = sqlite.OpenMarks(d.config.Data); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stamps.marks.Close()) }()
	}
	for _, b := range d.config.Backends {
		store := d.stores[b.Name]
		if store == nil {
			continue
		}
		d.checkBinding(b, store)
		err := store.Run(ctx, d.fromStore, func(o file.Object) { stamps.check(ctx, b.Name, o) })
		if err := errors.Join(err, stamps.err); err != nil {
			return err
		}
	}
	return nil
}

func (d *diskCheck) fromStore(f file.Finding) {
	g := finding{Level: f.Level, What: f.What, Where: f.Where, Repair: f.Repair}
	if f.Level == file.Mend {
		g.mend = func(context.Context) error { return f.Mend() }
	}
	d.findings = append(d.findings, g)
}

// A stampCheck holds the stamps of objects against the registry. A token is recorded, durably, before anything that was written with it is
// there: a stamp above the mark shows that the registry has lost tokens, or is older than the objects.
type stampCheck struct {
	*diskCheck
	marks *sqlite.Marks // nil if there is no registry to hold them against
	err   error         // the first one
}

func (c *stampCheck) check(ctx context.Context, backend string, o file.Object) {
	stamp, ok := proxy.ParseStamp(o.Headers[stampHeader])
	if !ok || c.marks == nil || c.err != nil || stamp.Registry != c.registry.ID {
		return
	}
	target, ok := c.config.Rules.Object(o.Bucket, o.Key)
	if !ok || target.Backend != backend || !target.Fenced || stamp.Resource != proxy.ResourceHash(target.Resource) {
		return // a copy brings the stamp of its source
	}
	e, err := c.marks.Lookup(ctx, target.Resource)
	if err != nil {
		c.err = fmt.Errorf("look up %s in the token registry: %w", target.Resource, err)
		return
	}
	if stamp.Generation > e.Generation || stamp.Generation == e.Generation && stamp.Token > e.Token {
		c.find(file.Error, fmt.Sprintf("it was written with token %d, and the registry knows %s up to %d only: the registry has lost tokens, or is an old one", stamp.Token, target.Resource, e.Token),
			o.Where, "run `fenceproxy rebuild`, which raises the marks to the stamps of the objects")
	}
}

// stampHeader is where an object keeps its [proxy.Stamp].
const stampHeader = "X-Amz-Meta-Fenceproxy"

// checkBinding compares the id that the root keeps with the registry's own.
func (d *diskCheck) checkBinding(b backendConfig, store *file.Checker) {
	id, err := store.RegistryID()
	known := d.registry.ID
	switch {
	case err != nil:
		d.find(file.Error, err.Error()+": serve cannot start", b.Root, "write the registry's id into .fenceproxy/registry: docs/registry-sqlite.md")
	case id == "" && known != "":
		d.find(file.Note, "the objects are bound to no token registry yet: the next start binds them", b.Root, "")
	case id != known && known != "":
		d.find(file.Error, fmt.Sprintf("the objects are fenced by registry %s, and the one in %s is %s: serve cannot start", id, d.config.Data, known), b.Root,
			"name the directory of the right one with `data:`")
	}
}

// checkUploads looks for uploads in the registry that no file store has any more: a kill may come between the end of an upload and
// that of its row.
func (d *diskCheck) checkUploads(context.Context) error {
	for _, u := range d.registry.Uploads {
		object, id, _ := cutLast(u, "?uploadId=")
		bucket, key, _ := strings.Cut(object, "/")
		target, ok := d.config.Rules.Bucket(bucket)
		store := d.stores[target.Backend]
		if !ok || store == nil || store.HasUpload(bucket, key, id) {
			continue
		}
		where := filepath.Join(d.config.Data, sqlite.FileName) + ": upload " + u
		d.mend("the registry keeps the token of an upload that is over", where, "remove the row", func(ctx context.Context) error {
			return sqlite.ForgetUploads(ctx, d.config.Data, u)
		})
	}
	return nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
