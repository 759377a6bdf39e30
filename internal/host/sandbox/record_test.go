package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/netproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// golden returns a record of version 0 in which some texts are replaced.
func golden(t *testing.T, file string, replace ...string) string {
	t.Helper()
	text, err := os.ReadFile("../../format/record/testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(string(text), replace[i]) {
			t.Fatalf("there is no %s in %s", replace[i], text)
		}
	}
	return strings.NewReplacer(replace...).Replace(string(text))
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// goldenNetwork returns the network setting of the sandbox in the golden files.
func goldenNetwork(t *testing.T) netclient.Setting {
	t.Helper()
	policy, err := netproto.ParsePolicy("allow", []string{"pypi.org", "*.pythonhosted.org:443", "udp/10.0.0.0/8:53-54"},
		[]string{"1.2.3.4"})
	if err != nil {
		t.Fatal(err)
	}
	policy.AllowECH = true
	return netclient.Setting{Policy: policy}
}

// A daemon takes over sandboxes whose records have no version yet. They are the same sandboxes,
// with the same network setting.
func TestRecordsOfVersion0(t *testing.T) {
	w := newWorld(t, 0)
	w.vmms.Unique = &agentproto.Unique{}
	mustBake(t, w)
	live := forkOne(t, w, ForkRequest{})
	if _, err := w.Branch(t.Context(), live, BranchRequest{Tag: "b", Mode: vm.BranchLive}); err != nil {
		t.Fatal(err)
	}
	asleep := forkOne(t, w, ForkRequest{})
	if _, err := w.Suspend(t.Context(), asleep); err != nil {
		t.Fatal(err)
	}
	a, err := w.Get(live)
	if err != nil {
		t.Fatal(err)
	}
	b, err := w.Get(asleep)
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(far).UTC()
	put(t, filepath.Join(a.live.dir, ledger.File), golden(t, "sandbox-branched.v0.json", "sb-ighgo6ti5fljkqrdh3uq5elsaq",
		live,
		"i4qibj6i2p5x7ct3ewagapdjmu", a.record.SnapshotID, "2026-11-25T11:22:37.500327463Z", end.Format(time.RFC3339Nano),
		"tt43lhlbmvk6fek7vozacqqsm4", a.record.At.ID, `"vmm_protocol":15`,
		fmt.Sprintf(`"vmm_protocol":%d`, vmmproto.Version)))
	put(t, filepath.Join(b.data, ledger.SuspendedFile), golden(t, "suspended-branched.v0.json",
		"suspended-sb-ighgo6ti5fljkqrdh3uq5elsaq-2", b.record.SnapshotTag, "sb-ighgo6ti5fljkqrdh3uq5elsaq", asleep,
		`"snapshot_id":"edsg2yndrwdtjgplycf5kuknza"`, fmt.Sprintf(`"snapshot_id":%q`, b.record.SnapshotID),
		"2026-11-25T11:22:37.500327463Z", end.Format(time.RFC3339Nano)))
	w.stop()
	w.start(t, 0)
	defer w.stop()
	if n, err := w.Recover(); n != 2 || err != nil || len(w.LeftAlone()) != 0 {
		t.Fatalf("recovered %d, %v; left alone: %+v", n, err, w.LeftAlone())
	}
	for id, state := range map[string]State{live: Running, asleep: Suspended} {
		s, err := w.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		i := s.Info()
		if i.State != state || i.SnapshotTag != "p" || i.Hostname != "sb-ighgo6" || !i.Expires.Equal(end) ||
			i.Labels["team"] != "a" ||
			i.Unique == nil || s.record.Env["A"] != "1" || !reflect.DeepEqual(i.Network, goldenNetwork(t)) {
			t.Errorf("%s: %+v", id, i)
		}
	}
	w.branch(t, live, "c", vm.BranchLive)
	if i, err := w.Resume(t.Context(), asleep); err != nil || i.State != Running ||
		!reflect.DeepEqual(i.Network, goldenNetwork(t)) {
		t.Errorf("resumed: %+v, %v", i, err)
	}
	w.KillAll()
	w.checkClean(t)
}

// refusals returns changed copies of a valid record. All of them must be refused.
func refusals(t *testing.T, text string) map[string]string {
	t.Helper()
	bad := map[string]string{"torn": text[:len(text)/2], "empty": ""}
	for name, c := range map[string][2]string{
		"another version":   {`"version":1`, `"version":2`},
		"an unknown field":  {`"hostname"`, `"later":true,"hostname"`},
		"no network":        {`"network":{"mode":"none"},`, ``},
		"an empty network":  {`"network":{"mode":"none"}`, `"network":{}`},
		"another network":   {`"network":{"mode":"none"}`, `"network":{"mode":"all"}`},
		"a renamed network": {`"network":{"mode":"none"}`, `"net":{"mode":"none"}`},
	} {
		if bad[name] = strings.Replace(text, c[0], c[1], 1); bad[name] == text {
			t.Fatalf("there is no %s in %s", c[0], text)
		}
	}
	return bad
}

// If the record of a sandbox is refused, the sandbox is left alone, whether it runs or is
// suspended. The sandbox loses nothing: when the record is repaired, the sandbox can be used again.
func TestRefusedRecordsLoseNothing(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	isolated := netclient.Isolated()
	live, asleep := forkOne(t, w, ForkRequest{Network: &isolated}), forkOne(t, w, ForkRequest{Network: &isolated})
	if _, err := w.Suspend(t.Context(), asleep); err != nil {
		t.Fatal(err)
	}
	good := map[string]string{}
	for _, id := range []string{live, asleep} {
		path := filepath.Join(w.cfg.DataDir, id, ledger.SuspendedFile)
		if id == live {
			path = filepath.Join(w.vmDir(id), ledger.File)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		good[path] = string(text)
	}
	for path, text := range good {
		for name, bad := range refusals(t, text) {
			w.stop()
			put(t, path, bad)
			w.start(t, 0)
			n, err := w.Recover()
			left := w.LeftAlone()
			if n != 1 || err != nil || len(left) != 1 || !strings.Contains(left[0].Reason, path) || w.vmms.Count() != 1 {
				t.Errorf("%s, %s: recovered %d, %v; left alone: %+v; %d VMs", filepath.Base(path), name, n, err, left,
					w.vmms.Count())
				continue
			}
			if pid := left[0].PID; (left[0].ID == live) != (pid == os.Getpid()) {
				t.Errorf("%s, %s: left alone: %+v", filepath.Base(path), name, left)
			}
			if now, err := os.ReadFile(path); err != nil || string(now) != bad {
				t.Errorf("%s, %s: the record is now %s, %v", filepath.Base(path), name, now, err)
			}
			put(t, path, text)
		}
	}
	w.stop()
	w.start(t, 0)
	defer w.stop()
	if n, err := w.Recover(); n != 2 || err != nil || len(w.LeftAlone()) != 0 {
		t.Errorf("recovered %d, %v; left alone: %+v", n, err, w.LeftAlone())
	}
	w.branch(t, live, "b", vm.BranchLive)
	if i, err := w.Resume(t.Context(), asleep); err != nil || i.State != Running ||
		i.Network.Policy.Mode != netproto.ModeNone {
		t.Errorf("resumed: %+v, %v", i, err)
	}
	w.KillAll()
	w.checkClean(t)
}
