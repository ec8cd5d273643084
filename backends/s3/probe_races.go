package s3

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

const (
	raceRounds = 3 // of each race between conditions
	racers     = 8 // PUTs
	slowRacers = 4 // Copies and Completes, which cost several requests each

	removeLanes  = 4  // keys on which removals race with PUTs
	removeRounds = 12 // on each
	removers     = 2  // in each round
)

// racer is the content that the i-th of a race writes.
func racer(i int) string { return fmt.Sprintf("racer %d", i) }

func (p *prober) putRaceToCreate(ctx context.Context, key string) (bool, string, error) {
	return p.races(ctx, "PUTs with If-None-Match: *", key, racers, func(key string) (sender, error) {
		return func(i int) (reply, error) {
			return p.do(ctx, http.MethodPut, key, "", []byte(racer(i)), ifNoneMatch, "*")
		}, nil
	})
}

func (p *prober) putRaceToReplace(ctx context.Context, key string) (bool, string, error) {
	return p.races(ctx, "PUTs with the same If-Match", key, racers, func(key string) (sender, error) {
		etag, err := p.put(ctx, key, older)
		return func(i int) (reply, error) {
			return p.do(ctx, http.MethodPut, key, "", []byte(racer(i)), ifMatch, etag)
		}, err
	})
}

func (p *prober) completeRace(ctx context.Context, key string) (bool, string, error) {
	return p.races(ctx, "Completes with If-None-Match: *", key, slowRacers, func(key string) (sender, error) {
		var ids [slowRacers]string
		var parts [slowRacers][]byte
		for i := range ids {
			var err error
			if ids[i], parts[i], err = p.upload(ctx, key, racer(i)); err != nil {
				return nil, err
			}
		}
		return func(i int) (reply, error) { return p.complete(ctx, key, ids[i], parts[i], ifNoneMatch, "*") }, nil
	})
}

func (p *prober) copyRace(ctx context.Context, key string) (bool, string, error) {
	return p.races(ctx, "Copies with If-None-Match: *", key, slowRacers, func(key string) (sender, error) {
		source := func(i int) string { return fmt.Sprintf("%s-source-%d", key, i) }
		for i := range slowRacers {
			if _, err := p.put(ctx, source(i), racer(i)); err != nil {
				return nil, err
			}
		}
		return func(i int) (reply, error) { return p.copyFrom(ctx, source(i), key, ifNoneMatch, "*") }, nil
	})
}

// A sender sends the write of the i-th of a race.
type sender func(i int) (reply, error)

// races has several rounds of n writes at once of which one may win. A round in which each is told that it met another (409) is
// nobody's fault; but somebody has to win once.
func (p *prober) races(ctx context.Context, what, key string, n int, prepare func(key string) (sender, error)) (bool, string, error) {
	won := 0
	for round := range raceRounds {
		key := fmt.Sprintf("%s-%d", key, round)
		send, err := prepare(key)
		if err != nil {
			return false, "", err
		}
		winners, wrong, err := p.race(ctx, key, n, send)
		if err != nil {
			return false, "", err
		}
		if wrong != "" {
			return false, fmt.Sprintf("Of %d racing %s %s.", n, what, wrong), nil
		}
		won += winners
	}
	if won == 0 {
		return false, fmt.Sprintf("Of %d racing %s none was carried out, in any of %d rounds.", n, what, raceRounds), nil
	}
	return true, fmt.Sprintf("Of %d racing %s never more than one was carried out, in %d rounds.", n, what, raceRounds), nil
}

// race is one round. It says how many won, none or one, or what is wrong.
func (p *prober) race(ctx context.Context, key string, n int, send sender) (winners int, wrong string, err error) {
	replies, errs := atOnce(n, send)
	content, _, err := p.content(ctx, key)
	if err != nil {
		return 0, "", err
	}
	var mine, failed int // mine is whose content is there, of those whose reply is unknown; failed are these
	mine = -1
	winner := -1
	for i := range n {
		switch {
		case errs[i] != nil:
			failed++
			if content == racer(i) {
				mine = i
			}
		case replies[i].ok():
			winners++
			winner = i
		}
	}
	switch {
	case failed == n:
		return 0, "", errs[0]
	case winners > 1:
		return 0, fmt.Sprintf("%d were carried out", winners), nil
	case winners == 1 && content != racer(winner):
		return 0, "one was answered with success, and another one is the object", nil
	case winners == 1 || mine >= 0:
		return 1, "", nil
	}
	for i := range n {
		if content == racer(i) {
			return 0, "one was refused, and is the object", nil
		}
	}
	return 0, "", nil
}

// atOnce sends all together, and waits for all.
func atOnce(n int, send sender) ([]reply, []error) {
	replies, errs := make([]reply, n), make([]error, n)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-start
			replies[i], errs[i] = send(i)
		})
	}
	close(start)
	all.Wait()
	return replies, errs
}

func (p *prober) deleteRace(ctx context.Context, key string) (bool, string, error) {
	return p.removeRaces(ctx, "DELETE with If-Match", key, p.deleteIf)
}

func (p *prober) batchRace(ctx context.Context, key string) (bool, string, error) {
	return p.removeRaces(ctx, "DeleteObjects with an ETag", key, p.batchIf)
}

// removeRaces lets removals of an older object race with a PUT of a newer one. Whatever comes first: the newer one has to be there
// afterwards. The hole that some stores have between looking at the ETag and removing is small, so that a race that is lost is a
// proof, and one that is not, none.
func (p *prober) removeRaces(ctx context.Context, what, key string, remove remover) (bool, string, error) {
	var raced, lost [removeLanes]int
	_, errs := atOnce(removeLanes, func(lane int) (reply, error) {
		key := fmt.Sprintf("%s-%d", key, lane)
		for range removeRounds {
			r, err := p.removeRace(ctx, key, remove)
			if err != nil {
				return reply{}, err
			}
			raced[lane] += r.raced
			lost[lane] += r.lost
		}
		return reply{}, nil
	})
	rounds, gone := 0, 0
	for lane := range removeLanes {
		if errs[lane] != nil {
			return false, "", errs[lane]
		}
		rounds += raced[lane]
		gone += lost[lane]
	}
	switch {
	case rounds == 0:
		return false, fmt.Sprintf("A %s beside a PUT kept the PUT from being carried out, each time.", what), nil
	case gone > 0:
		return false, fmt.Sprintf("In %d of %d races with a PUT, a %s removed the newer object.", gone, rounds, what), nil
	}
	const nothing = "In %d races with a PUT, no %s removed the newer object (which is no proof that none ever will)."
	return true, fmt.Sprintf(nothing, rounds, what), nil
}

// A removeResult counts one round: whether the PUT was carried out, and whether the removals took what it wrote.
type removeResult struct{ raced, lost int }

// removeRace is one round. If all began at once, the removals would be over before the PUT has its body stored. So they begin at any
// moment of the time that a PUT and a GET took just before; and they are few, for after the first one nothing old is left to remove.
func (p *prober) removeRace(ctx context.Context, key string, remove remover) (removeResult, error) {
	began := time.Now()
	etag, err := p.put(ctx, key, older)
	if err != nil {
		return removeResult{}, err
	}
	took := min(time.Since(began), 100*time.Millisecond)
	replies, errs := atOnce(1+removers, func(i int) (reply, error) {
		if i == 0 {
			return p.do(ctx, http.MethodPut, key, "", []byte(newer))
		}
		time.Sleep(rand.N(took + 1))
		return remove(ctx, key, etag)
	})
	if errs[0] != nil || !replies[0].ok() {
		return removeResult{}, errs[0]
	}
	content, _, err := p.content(ctx, key)
	if err != nil || content == newer {
		return removeResult{raced: 1}, err
	}
	return removeResult{raced: 1, lost: 1}, nil
}
