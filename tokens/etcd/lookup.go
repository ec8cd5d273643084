package etcd

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fenceproxy/fenceproxy/tokens"
)

// Lookup implements [fleet.Store].
func (s *store) Lookup(ctx context.Context, resource string) (tokens.Entry, error) {
	found, err := s.get(ctx, s.keys.fence(resource))
	if err != nil {
		return tokens.Entry{}, err
	}
	return entryOf(resource, found.Kvs)
}

// List implements [fleet.Store]. A long list is read in parts, and is not of one moment then.
func (s *store) List(ctx context.Context, prefix, after string, limit int) (entries []tokens.Entry, err error) {
	first := max(prefix, after)
	if after >= prefix && after != "" {
		first = after + "\x00"
	}
	for limit > len(entries) {
		kvs, more, err := s.page(ctx, prefix, first, min(limit-len(entries), pageSize*10))
		if err != nil {
			return nil, err
		}
		for _, kv := range kvs {
			e, err := parseFence(string(kv.Key[len(s.keys.fences()):]), kv.Value)
			if err != nil {
				return nil, err
			}
			entries = append(entries, e)
			first = e.Resource + "\x00"
		}
		if !more {
			break
		}
	}
	return entries, nil
}

// page returns the fences of resources that begin with prefix, from first on, in byte order.
func (s *store) page(ctx context.Context, prefix, first string, limit int) (kvs []*mvccpb.KeyValue, more bool, err error) {
	end := clientv3.GetPrefixRangeEnd(s.keys.fence(prefix))
	if s.keys.fence(first) >= end {
		return nil, false, nil
	}
	found, err := s.get(ctx, s.keys.fence(first), clientv3.WithRange(end), clientv3.WithLimit(int64(limit)))
	if err != nil {
		return nil, false, err
	}
	return found.Kvs, found.More, nil
}

// Count implements [tokens.Maintained].
func (r *Registry) Count(ctx context.Context, prefix string) (int64, error) {
	found, err := r.store.get(ctx, r.store.keys.fence(prefix), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("count resources: %w", unavailable(err))
	}
	return found.Count, nil
}

func uploadValue(t tokens.Token) string { return fmt.Sprintf("%020d", int64(t)) }

// TouchUpload implements [fleet.Store]. Parts come by the thousand with one token: only a higher one is written.
func (s *store) TouchUpload(ctx context.Context, upload string, t tokens.Token) error {
	if known, err := s.UploadToken(ctx, upload); err != nil || known >= t {
		return err
	}
	key := s.keys.upload(upload)
	put := []clientv3.Op{clientv3.OpPut(key, uploadValue(t))}
	_, err := s.txn(ctx, []clientv3.Cmp{absent(key)}, put,
		[]clientv3.Op{clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Value(key), "<", uploadValue(t))}, put, nil)})
	return err
}

// UploadToken implements [fleet.Store].
func (s *store) UploadToken(ctx context.Context, upload string) (tokens.Token, error) {
	found, err := s.get(ctx, s.keys.upload(upload))
	if err != nil || len(found.Kvs) == 0 {
		return 0, err
	}
	n, err := strconv.ParseInt(string(found.Kvs[0].Value), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the token of an upload is damaged: %w", err)
	}
	return tokens.Token(n), nil
}

// ForgetUpload implements [fleet.Store].
func (s *store) ForgetUpload(ctx context.Context, upload string) error {
	_, err := s.txn(ctx, nil, []clientv3.Op{clientv3.OpDelete(s.keys.upload(upload))}, nil)
	return err
}

func milliseconds(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }
