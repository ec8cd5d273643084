package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A cluster that is restored from a snapshot has lost what it acknowledged since. Who runs notices by its answers, see checkHeader and Beat. Who
// comes later notices by what was written down when the registry was made: the cluster's id, which most restores change, and the distance of two
// counters, which all of them do. The raft index counts everything that the cluster agrees on, and the revision that part of it which
// changes keys, so the index never falls back behind the revision; but a restore begins the index anew and keeps the revision.

// sloppy is how far two looks at the distance may differ: a member reads the two counters one after the other, while writes go on.
const sloppy = 64

// distance is the raft index less the revision. known is false where no member tells.
func (s *store) distance(ctx context.Context) (most int64, known bool) {
	ctx, cancel := context.WithTimeout(ctx, s.callTime)
	defer cancel()
	endpoints := s.client.Endpoints()
	answers := make(chan *clientv3.StatusResponse, len(endpoints))
	for _, e := range endpoints {
		go func() {
			status, err := s.client.Status(ctx, e)
			if err != nil {
				status = nil // it is away, or tells this to other users only
			}
			answers <- status
		}()
	}
	for range endpoints {
		status := <-answers
		if status == nil {
			continue
		}
		// One that lags behind shows a smaller distance, never a larger one.
		if d := int64(status.RaftIndex) - status.Header.Revision; !known || d > most {
			most, known = d, true
		}
		if len(endpoints) > 1 && known {
			// Those that are away need not be waited for.
			time.AfterFunc(s.callTime/4, cancel)
		}
	}
	return most, known
}

// restoredSince says why the cluster is not the one that the registry was made in; "" if it is.
func (s *store) restoredSince(ctx context.Context, value []byte, cluster uint64) (string, error) {
	var i identity
	if err := json.Unmarshal(value, &i); err != nil {
		return "", err
	}
	if i.Cluster != hexCluster(cluster) {
		return fmt.Sprintf("the registry was made in cluster %s, and this one is cluster %x: it was restored from a snapshot, or is a copy", i.Cluster, cluster), nil
	}
	now, known := s.distance(ctx)
	switch {
	case i.Distance == nil:
	case !known:
		s.log.Warn("no member of etcd tells its status: if it was restored from a snapshot under its old id while no proxy ran, that goes unnoticed")
	case now < *i.Distance-sloppy:
		return fmt.Sprintf("its raft index is less than it was against its revision (by %d, and by %d when the registry was made): "+
			"it was restored from a snapshot under its old id", now, *i.Distance), nil
	}
	return "", nil
}
