package etcd

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Check implements [locks.Checker]. What the members' disks do with what is synced to them cannot be asked, nor whether they run with
// --unsafe-no-fsync.
func (s *Service) Check(ctx context.Context) (found []string, err error) {
	asking, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	members, err := s.client.MemberList(asking)
	if err != nil {
		return []string{fmt.Sprintf("Whether the cluster survives the loss of a member could not be found out: %v.", s.explain(err))}, nil
	}
	voters := 0
	for _, m := range members.Members {
		if !m.IsLearner {
			voters++
		}
	}
	if voters < 3 {
		found = append(found, fmt.Sprintf("The cluster has %s: if a disk is lost it has to be restored from a snapshot, and gives the revisions since then "+
			"for a second time. Have three members, and restore with `etcdutl snapshot restore --bump-revision`.", count(voters)))
	}
	for _, m := range members.Members {
		if len(m.ClientURLs) == 0 {
			continue // it has not started yet
		}
		version, err := s.version(ctx, m.ClientURLs[0])
		if err != nil {
			found = append(found, fmt.Sprintf("Which version member %s (%s) is could not be found out: %v.", m.Name, m.ClientURLs[0], err))
		} else if flaw := flawOf(version, voters); flaw != "" {
			found = append(found, fmt.Sprintf("Member %s is etcd %s, which %s.", m.Name, version, flaw))
		}
	}
	return found, nil
}

func (s *Service) version(ctx context.Context, endpoint string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime/2)
	defer cancel()
	status, err := s.client.Status(ctx, endpoint)
	if err != nil {
		return "", err
	}
	return status.Version, nil
}

func count(voters int) string {
	if voters == 1 {
		return "one voting member"
	}
	return fmt.Sprintf("%d voting members", voters)
}

// flawOf says how a version can lose what it has acknowledged, by etcd's change logs: 3.4.21, 3.5.3 and 3.5.5 mend it.
func flawOf(version string, voters int) string {
	version, _, _ = strings.Cut(version, "-")
	var numbers [3]int
	for i, part := range strings.SplitN(version, ".", 3) {
		numbers[i], _ = strconv.Atoi(part)
	}
	switch major, minor, patch := numbers[0], numbers[1], numbers[2]; {
	case major == 3 && minor == 5 && patch < 3:
		return "may apply a change at one member and not at another when it is killed: take 3.5.5 or newer"
	case voters == 1 && major == 3 && (minor == 4 && patch < 21 || minor == 5 && patch < 5):
		return "acknowledges writes before they are on disk where it is the only member: take 3.4.21, 3.5.5 or newer"
	case major == 3 && minor < 4:
		return "is older than 3.4, and was not tried"
	}
	return ""
}
