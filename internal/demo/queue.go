package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// queueJobs is how many jobs are done while nothing goes wrong.
const queueJobs = 40

// Queue is the story of a jobs table: ten workers that take jobs from it with FOR UPDATE SKIP LOCKED, each job's attempt number as the token of
// its result, one worker that is killed and one that is paused.
func Queue(ctx context.Context, o Options) error {
	return Play(ctx, o, func(ctx context.Context, s *Stage) error {
		if err := s.Need("postgres"); err != nil {
			return err
		}
		q := &queueStory{Stage: s}
		if err := q.prepare(ctx); err != nil {
			return err
		}
		defer hangUp(ctx, q.db)
		s.Title("A jobs table, ten workers, and each job's attempt number as its token")
		s.Text("The jobs are in PostgreSQL, the results are objects behind fenceproxy. A worker holds its job by a row lock, in a transaction that is open "+
			"while it works: the others skip it. The server ends a transaction that asks nothing for %s; workers ask now and then.", queueIdle)
		s.Act("1 · The wrong way: the attempt is counted in the transaction that is open while the work goes on")
		if err := q.uncommitted(ctx); err != nil {
			return err
		}
		s.Act(fmt.Sprintf("2 · The right way: counted and committed first, then held. %d jobs, %d worker processes", queueJobs, queueWorkers))
		crew, stop, err := q.rush(ctx)
		if err != nil {
			return err
		}
		defer stop()
		s.Act("3 · A worker is killed in the middle of its transaction")
		if err := q.killed(ctx, crew); err != nil {
			return err
		}
		s.Act("4 · A worker is paused in the middle of its transaction")
		if err := q.paused(ctx, crew); err != nil {
			return err
		}
		s.Act("5 · The count")
		if err := q.tally(ctx, crew); err != nil {
			return err
		}
		s.Verdict("Shown: no job was processed twice. The killed worker's job was free at once; the paused worker's late result was refused.")
		return nil
	})
}

// queueStory is the stage with the table and the results.
type queueStory struct {
	*Stage
	postgres *Postgres
	proxy    *Proxy
	db       *pgx.Conn
	jobs     int // how many there are in the table
}

func (q *queueStory) prepare(ctx context.Context) (err error) {
	if q.postgres, err = q.Postgres(ctx); err != nil {
		return err
	}
	if q.proxy, err = q.Proxy(ctx); err != nil {
		return err
	}
	if q.db, err = pgx.Connect(ctx, q.postgres.DSN); err != nil {
		return err
	}
	if _, err = q.db.Exec(ctx, queueTables); err != nil {
		return err
	}
	return q.add(ctx, queueJobs)
}

// add puts n more jobs into the table.
func (q *queueStory) add(ctx context.Context, n int) error {
	_, err := q.db.Exec(ctx, "INSERT INTO jobs (id) SELECT generate_series($1::int, $2::int)", q.jobs+1, q.jobs+n)
	q.jobs += n
	return err
}

// uncommitted shows that an attempt that was not committed is counted again. It changes nothing.
func (q *queueStory) uncommitted(ctx context.Context) error {
	a, err := pgx.Connect(ctx, q.postgres.DSN)
	if err != nil {
		return err
	}
	defer hangUp(ctx, a)
	first, err := takeOpen(ctx, a)
	if err != nil {
		return err
	}
	q.Say("A", "BEGIN, takes job %d, attempt %d, and works: its transaction is open", first.id, first.attempt)
	_ = a.PgConn().Conn().Close() // what the kernel does for a process that has died
	q.Say("demo", "breaks A's connection, which undoes the transaction, and the number with it")
	var second queueJob
	err = until(ctx, q.postgres.Process, "the job is free again", func(ctx context.Context) bool {
		second, err = takeOpen(ctx, q.db)
		_, back := q.db.Exec(ctx, "ROLLBACK")
		return err == nil && back == nil && second.id == first.id
	})
	if err != nil {
		return err
	}
	if second != first {
		return fmt.Errorf("the second session was to get attempt %d of job %d, too, and got %d", first.attempt, first.id, second.attempt)
	}
	q.Say("B", "BEGIN, takes job %d, attempt %d", second.id, second.attempt)
	q.Alarm("", "One number, two workers: if A was only slow, nobody can tell its result from B's.")
	return nil
}

// takeOpen takes a job in a transaction that it leaves open.
func takeOpen(ctx context.Context, conn *pgx.Conn) (j queueJob, err error) {
	if _, err = conn.Exec(ctx, "BEGIN"); err == nil {
		err = conn.QueryRow(ctx, takeJob).Scan(&j.id, &j.attempt)
	}
	return j, err
}

// rush has all workers do all jobs.
func (q *queueStory) rush(ctx context.Context) (*queueCrew, func(), error) {
	q.Quote(takeJob + ";\n")
	q.Why("A transaction of its own. Whatever happens from here on, nobody gets that number again.")
	q.Quote("BEGIN; " + holdJob + ";\n")
	q.Why("Has somebody counted on in between, this finds nothing: the job is theirs. While it is held, nobody can.")
	q.Quote("-- the work, and the result is written with the attempt as its token\n" + endJob + "; COMMIT;\n")
	crew, stop, err := q.queueCrew(ctx, q.postgres.DSN, q.proxy.URL+"/demo/results")
	if err != nil {
		return nil, nil, err
	}
	if err = q.allBusy(ctx, crew); err == nil {
		err = q.allDone(ctx, crew)
	}
	if err != nil {
		stop()
		return nil, nil, err
	}
	return crew, stop, nil
}

// allBusy waits until each worker has a job.
func (q *queueStory) allBusy(ctx context.Context, crew *queueCrew) error {
	held := map[int]string{}
	for len(held) < queueWorkers {
		said, err := crew.next(ctx)
		if err != nil {
			return err
		}
		if said.word != "took" {
			return fmt.Errorf("%s was to work at job %d, and %s", said.worker.Name, said.id, said.word)
		}
		if who := held[said.id]; who != "" {
			return fmt.Errorf("%s took job %d, which %s holds", said.worker.Name, said.id, who)
		}
		held[said.id] = said.worker.Name
	}
	q.Say("workers", "hold %d jobs at once, each another one", len(held))
	return nil
}

// allDone lets all work end.
func (q *queueStory) allDone(ctx context.Context, crew *queueCrew) error {
	for job := range q.jobs {
		if err := crew.end(job + 1); err != nil {
			return err
		}
	}
	for done := 0; done < q.jobs; {
		said, err := crew.next(ctx)
		if err != nil {
			return err
		}
		switch said.word {
		case "did":
			done++
		case "refused":
			return fmt.Errorf("%s holds job %d, and its result was refused: %s", said.worker.Name, said.id, said.text)
		}
	}
	q.Say("workers", "have done %d jobs", q.jobs)
	return nil
}

// killed has the worker that takes the next job killed.
func (q *queueStory) killed(ctx context.Context, crew *queueCrew) error {
	first, err := q.given(ctx, crew)
	if err != nil {
		return err
	}
	crew.killed = first.worker
	at := time.Now()
	first.worker.Kill()
	q.Say("demo", "kill -9 of %s, process %d: its connection breaks, and frees the row", first.worker.Name, first.worker.PID)
	second, err := q.takenOver(ctx, crew, first, at)
	if err != nil {
		return err
	}
	if after := time.Since(at); after >= queueIdle {
		return fmt.Errorf("the job of the killed worker was to be free at once, and not after %s", after)
	}
	q.Relief("", "The job was free at once: no lease had to run out. And its number is a new one.")
	return q.done(ctx, crew, second)
}

// paused has the worker that takes the next job stopped until another one has done it.
func (q *queueStory) paused(ctx context.Context, crew *queueCrew) error {
	first, err := q.given(ctx, crew)
	if err != nil {
		return err
	}
	at := time.Now()
	if err := first.worker.Pause(); err != nil {
		return err
	}
	q.Say("demo", "SIGSTOP to %s, process %d: its connection, and the row lock, remain", first.worker.Name, first.worker.PID)
	second, err := q.takenOver(ctx, crew, first, at)
	if err != nil {
		return err
	}
	if err := q.done(ctx, crew, second); err != nil {
		return err
	}
	if err := first.worker.Resume(); err != nil {
		return err
	}
	q.Say("demo", "SIGCONT to %s: it writes its result, and would commit after that", first.worker.Name)
	late, err := crew.until(ctx, "refused", first.id)
	if err != nil {
		return err
	}
	q.Relief(late.worker.Name, "is refused. It gets: %s", late.text)
	table, err := q.proxy.Audit(ctx, "--code", "StaleToken")
	if err != nil {
		return err
	}
	q.Quote("$ fenceproxy audit --code StaleToken\n" + withoutDetail(table))
	want := fmt.Sprintf("token %d is below %d", first.attempt, second.attempt)
	if late.worker != first.worker || !strings.Contains(late.text, want) || !strings.Contains(table, want) {
		return fmt.Errorf("the refusal of %s and the audit log were to say %q", first.worker.Name, want)
	}
	return nil
}

// given adds a job, and tells who takes it.
func (q *queueStory) given(ctx context.Context, crew *queueCrew) (queueSaid, error) {
	if err := q.add(ctx, 1); err != nil {
		return queueSaid{}, err
	}
	took, err := crew.until(ctx, "took", q.jobs)
	if err == nil {
		q.Say(took.worker.Name, "takes job %d, attempt %d, and works", took.id, took.attempt)
	}
	return took, err
}

// takenOver tells who takes the job next, since a worker was killed or paused at a time.
func (q *queueStory) takenOver(ctx context.Context, crew *queueCrew, first queueSaid, at time.Time) (queueSaid, error) {
	took, err := crew.until(ctx, "took", first.id)
	if err != nil {
		return took, err
	}
	q.Say(took.worker.Name, "takes job %d, attempt %d, %.2f s after that", took.id, took.attempt, time.Since(at).Seconds())
	if took.worker == first.worker || took.attempt <= first.attempt {
		err = fmt.Errorf("another worker was to take job %d with a higher number than %d", first.id, first.attempt)
	}
	return took, err
}

// done lets a worker end its job.
func (q *queueStory) done(ctx context.Context, crew *queueCrew, took queueSaid) error {
	if err := crew.end(took.id); err != nil {
		return err
	}
	did, err := crew.until(ctx, "did", took.id)
	if err != nil {
		return err
	}
	if did.worker != took.worker || did.attempt != took.attempt {
		return fmt.Errorf("%s has done job %d, which %s holds", did.worker.Name, did.id, took.worker.Name)
	}
	q.Say(did.worker.Name, "writes the result with token %d, and commits", did.attempt)
	return nil
}

// tally holds table, results and what the workers said against each other.
func (q *queueStory) tally(ctx context.Context, crew *queueCrew) error {
	var jobs, done, attempts, entries int
	err := q.db.QueryRow(ctx, "SELECT count(*), count(*) FILTER (WHERE done), sum(attempt), (SELECT count(*) FROM processed) FROM jobs").Scan(&jobs, &done, &attempts, &entries)
	if err != nil {
		return err
	}
	rows, err := q.db.Query(ctx, "SELECT id, jobs.attempt, worker FROM jobs JOIN processed ON job = id AND processed.attempt = jobs.attempt ORDER BY id")
	if err != nil {
		return err
	}
	defer rows.Close()
	results := 0
	for rows.Next() {
		var j queueJob
		var worker string
		if err := rows.Scan(&j.id, &j.attempt, &worker); err != nil {
			return err
		}
		text, err := object{where: fmt.Sprintf("%s/demo/results/%d", q.proxy.URL, j.id)}.read(ctx)
		if err != nil {
			return err
		}
		if want := queueResult(j, worker); text != want || crew.wrote[j.id] != 1 {
			return fmt.Errorf("the result of job %d was to be %q, written once; it is %q, written %d times", j.id, want, text, crew.wrote[j.id])
		}
		results++
	}
	if err := rows.Err(); err != nil {
		return err
	}
	q.Say("postgres", "%d jobs, %d done; %d attempts; %d entries in the table of processed jobs", jobs, done, attempts, entries)
	q.Why("An attempt that another one overtook between the two transactions has done nothing.")
	q.Say("store", "%d results, each written once, by the attempt that has the job's entry", results)
	if jobs != q.jobs || done != jobs || entries != jobs || results != jobs || len(crew.wrote) != jobs {
		return errors.New("each job was to be processed once, and to have one result")
	}
	return nil
}
