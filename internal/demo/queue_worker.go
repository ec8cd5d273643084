package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// queueTables: the second has no key on purpose, for it counts how often a job was processed.
const queueTables = `CREATE TABLE jobs (id int PRIMARY KEY, attempt bigint NOT NULL DEFAULT 0, done boolean NOT NULL DEFAULT false);
CREATE TABLE processed (job int NOT NULL, attempt bigint NOT NULL, worker text NOT NULL)`

const (
	// takeJob counts a job's attempt up, and is committed by itself, before anybody uses the number: what is only in an open transaction is
	// undone with it, and is given again. Attempts of jobs that nobody has tried come first, so that workers do not run after the same job.
	takeJob = `UPDATE jobs SET attempt = attempt + 1 WHERE id = (
  SELECT id FROM jobs WHERE NOT done ORDER BY attempt, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, attempt`

	// holdJob holds the job for as long as its transaction is open. Between takeJob and this, another worker may have counted on: the job is
	// that one's then, and this finds nothing. While it is held nobody can count on, so who holds a job has its highest number.
	holdJob = `SELECT id FROM jobs WHERE id = $1 AND attempt = $2 AND NOT done FOR UPDATE SKIP LOCKED`

	endJob   = `UPDATE jobs SET done = true WHERE id = $1`
	countJob = `INSERT INTO processed (job, attempt, worker) VALUES ($1, $2, $3)`
)

// queueIdle is how long the server lets a transaction be open that asks nothing; a worker asks three times as often.
const queueIdle = 3 * time.Second

// WorkQueue is a worker's process of [Queue]. It takes job after job until it is ended, and writes to out, a line each, what it does: a word,
// the job, the attempt, and what else there is to say. It does not look whether it still holds a job before it writes the result. In the
// environment:
//
//	NAME     its own
//	JOBS     URL of the database
//	RESULTS  URL of the results, behind fenceproxy
//	WORKED   a folder: a job's work is done when there is a file in it with the job's number
func WorkQueue(ctx context.Context, out io.Writer) error {
	config, err := pgx.ParseConfig(os.Getenv("JOBS"))
	if err != nil {
		return err
	}
	w := &queueWorker{name: os.Getenv("NAME"), results: os.Getenv("RESULTS"), worked: os.Getenv("WORKED"), out: out}
	config.RuntimeParams["application_name"] = w.name
	config.RuntimeParams["idle_in_transaction_session_timeout"] = strconv.FormatInt(queueIdle.Milliseconds(), 10)
	config.ConnectTimeout = patience
	for {
		if err := w.session(ctx, config); err != nil {
			return err
		}
	}
}

type queueWorker struct {
	name, results, worked string
	out                   io.Writer
}

// A queueJob is an attempt at a job.
type queueJob struct {
	id      int
	attempt int64
}

// session takes jobs over one connection, until the server has ended that.
func (w *queueWorker) session(ctx context.Context, config *pgx.ConnConfig) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer hangUp(ctx, conn)
	for {
		switch err := w.one(ctx, conn); {
		case conn.IsClosed() && ctx.Err() == nil:
			return nil
		case errors.Is(err, pgx.ErrNoRows):
			if err := sleep(ctx, 50*time.Millisecond+rand.N(100*time.Millisecond)); err != nil {
				return err
			}
		case err != nil:
			return err
		}
	}
}

// hangUp closes a connection, also after ctx has ended.
func hangUp(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_ = conn.Close(ctx)
}

// one takes and does one job. It fails with pgx.ErrNoRows where there is none.
func (w *queueWorker) one(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	var j queueJob
	if err := conn.QueryRow(ctx, takeJob).Scan(&j.id, &j.attempt); err != nil {
		return err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // after a commit it does nothing
	held, err := tx.Exec(ctx, holdJob, j.id, j.attempt)
	if err != nil || held.RowsAffected() == 0 {
		return err
	}
	w.say("took", j, "")
	if err := w.work(ctx, tx, j); err != nil {
		return err
	}
	return w.finish(ctx, tx, j)
}

// work asks the server something now and then, so that it sees that we live. That it does not answer, because it has ended the transaction,
// does not end the work.
func (w *queueWorker) work(ctx context.Context, tx pgx.Tx, j queueJob) error {
	asked := time.Now()
	for {
		if _, err := os.Stat(filepath.Join(w.worked, strconv.Itoa(j.id))); err == nil {
			return nil
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
		if time.Since(asked) > queueIdle/3 {
			_, _ = tx.Exec(ctx, "SELECT 1")
			asked = time.Now()
		}
	}
}

// finish writes the result, and then says in the table that the job is done. If we crash in between, another attempt writes the result anew.
func (w *queueWorker) finish(ctx context.Context, tx pgx.Tx, j queueJob) error {
	result := object{fmt.Sprintf("%s/%d", w.results, j.id), tokens.Token(j.attempt), w.name}
	err := result.write(ctx, queueResult(j, w.name))
	var refused *Refusal
	if errors.As(err, &refused) {
		w.say("refused", j, refused.Error())
		return tx.Rollback(ctx)
	}
	if err != nil {
		return err
	}
	w.say("wrote", j, "")
	_, err = tx.Exec(ctx, endJob, j.id)
	if err == nil {
		_, err = tx.Exec(ctx, countJob, j.id, j.attempt, w.name)
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	if err == nil {
		w.say("did", j, "")
	}
	return err
}

func (w *queueWorker) say(word string, j queueJob, text string) {
	fmt.Fprintln(w.out, word, j.id, j.attempt, text)
}

// queueResult is what is in a result's object.
func queueResult(j queueJob, worker string) string {
	return fmt.Sprintf("job %d, attempt %d, by %s", j.id, j.attempt, worker)
}
