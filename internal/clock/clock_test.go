package clock

import "testing"

func TestBoot(t *testing.T) {
	if first, second := (System{}).Boot(), (System{}).Boot(); first <= 0 || second < first {
		t.Errorf("the boot clock says %s, then %s", first, second)
	}
}
