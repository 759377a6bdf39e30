package dirsync

import "testing"

// TestReconcile checks the action for each combination of history and of changes on both sides.
func TestReconcile(t *testing.T) {
	file := func(size, at int64) Entry { return Entry{Kind: File, Mode: 0o644, Size: size, Time: at} }
	dir := func(mode uint32) Entry { return Entry{Kind: Dir, Mode: mode} }
	link := func(target string, at int64) Entry {
		return Entry{Kind: Link, Size: int64(len(target)), Time: at, Link: target}
	}
	none, a, b, c := Entry{}, file(1, 1), file(1, 2), file(3, 3)
	device := Entry{Kind: Other}
	ab := Agreed{a, a}
	for _, x := range []struct {
		name         string
		base         Agreed
		host, guest  Entry
		oneWay, both Action
	}{
		{"nothing there", Agreed{}, none, none, Nothing, Nothing},
		{"new here", Agreed{}, a, none, Push, Push},
		{"new there", Agreed{}, none, a, Nothing, Pull},
		{"equal at the start", Agreed{}, a, a, Agree, Agree},
		{"other time at the start", Agreed{}, a, b, Push, Compare},
		{"other size at the start", Agreed{}, a, c, Push, Conflict},
		{"other mode at the start", Agreed{}, a, Entry{Kind: File, Mode: 0o755, Size: 1, Time: 1}, Push, Agree},
		{"directories at the start", Agreed{}, dir(0o755), dir(0o755), Agree, Agree},
		{"other mode of a directory at the start", Agreed{}, dir(0o700), dir(0o755), Push, Agree},
		{"links at the start", Agreed{}, link("x", 1), link("x", 2), Push, Compare},
		{"links of other length", Agreed{}, link("x", 1), link("xy", 2), Push, Conflict},
		{"a file here, a directory there", Agreed{}, a, dir(0o755), Conflict, Conflict},
		{"a directory here, a file there", Agreed{}, dir(0o755), a, Push, Conflict},

		{"unchanged", ab, a, a, Nothing, Nothing},
		{"changed here", ab, b, a, Push, Push},
		{"changed there", ab, a, b, Nothing, Pull},
		{"changed on both sides", ab, b, c, Push, Conflict},
		{"changed on both sides, same size", ab, b, file(1, 5), Push, Compare},
		{"changed on both sides, now equal", ab, c, c, Agree, Agree},
		{"removed here", ab, none, a, Push, Push},
		{"removed there", ab, a, none, Nothing, Pull},
		{"removed on both sides", ab, none, none, Agree, Agree},
		{"removed here, changed there", ab, none, c, Push, Conflict},
		{"changed here, removed there", ab, c, none, Push, Conflict},
		{"a directory instead of the file here", ab, dir(0o755), a, Push, Push},
		{"a directory instead of the file there", ab, a, dir(0o755), Nothing, Pull},
		{"the sides may differ in agreement", Agreed{a, b}, a, b, Nothing, Nothing},

		{"a device there", ab, a, device, Skip, Skip},
		{"a device here", Agreed{}, device, a, Skip, Skip},
		{"an unreadable file instead of a synced one", ab, device, a, Skip, Skip},
	} {
		if got := Reconcile(false, x.base, x.host, x.guest); got != x.oneWay {
			t.Errorf("%s, one way: %v, want %v", x.name, got, x.oneWay)
		}
		if got := Reconcile(true, x.base, x.host, x.guest); got != x.both {
			t.Errorf("%s, both ways: %v, want %v", x.name, got, x.both)
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "a/b.c": true, "ä/ö": true, "..a": true, "a b": true,
		"": false, "/a": false, "..": false, "a/../b": false, "a//b": false, "a/": false, "./a": false,
		"a\nb": false, "a\x1b[2J": false, "a\x00b": false, "a\xff": false, "a\ufffd": false,
	} {
		if goodName(name) != want {
			t.Errorf("%q: %v, want %v", name, !want, want)
		}
	}
	for _, x := range []struct {
		at, target string
		want       bool
	}{
		{"l", "a", true}, {"l", "a/b", true}, {"d/l", "../a", true}, {"d/e/l", "../../a", true}, {"l", "./a", true},
		{"l", "", false}, {"l", "/etc", false}, {"l", "..", false}, {"l", "../a", false}, {"d/l", "../../a", false},
		{"d/l", "./../../a", false}, {"l", "a/..", false}, {"d/l", "a/../b", false}, // "a" may be a link that leads up
		{"l", "a\nb", false}, {"l", "a\xff", false},
	} {
		if got := staysInside(x.at, x.target); got != x.want {
			t.Errorf("%s -> %s: %v", x.at, x.target, got)
		}
	}
}
