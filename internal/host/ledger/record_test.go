package ledger

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	durable "github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/netproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// wholeRecord returns a record in which every field is set.
func wholeRecord(t *testing.T) Record {
	t.Helper()
	policy, err := netproto.ParsePolicy("allow", []string{"pypi.org", "*.pythonhosted.org:443", "udp/10.0.0.0/8:53-54"},
		[]string{"1.2.3.4"})
	if err != nil {
		t.Fatal(err)
	}
	policy.AllowECH = true
	hook := snapshot.Hook{Args: []string{"a"}, TimeoutSecs: 21, OnFailure: snapshot.HookAborts}
	r := Record{ID: "i", SnapshotTag: "t", SnapshotID: "s", Origin: "o", Hostname: "h", Owner: "w", PID: 1,
		Created:     time.Unix(1, 2).UTC(),
		MemoryBytes: 3, Expires: time.Unix(4, 5).UTC(), Fork: "f", Protocol: vmmproto.Version, ExpirySuspends: true,
		Annotation: json.RawMessage(`{"a":1}`), Env: map[string]string{"A": "1"}, Labels: map[string]string{"a": "1"},
		Network: netclient.Setting{Policy: policy, Limits: netproto.Limits{BytesPerSecond: 6, PacketsPerSecond: 7,
			Connections: 8}, Hold: netproto.Hold{Hosts: []netproto.Rule{{Name: "h.i"}}, Answer: netproto.AnswerWait}},
		Limits: vm.Limits{MemoryMiB: 64, SwapMiB: 9, CPUs: 1.5, CPUWeight: 10, IOBytesPerSecond: 1 << 20,
			IOOpsPerSecond: 64},
		Hooks:       snapshot.Hooks{BeforeBranch: &hook, AfterFork: &hook, BeforeSuspend: &hook, AfterResume: &hook},
		IdleTimeout: time.Second, AutoResume: true, Frozen: []durable.FrozenTop{{Name: "n", Owner: "o"}}, Top: "t", Tops: 11,
		Count: 12, Suspends: 13, At: &snapshot.Ref{ID: "a", Tag: "at"},
		Rebased:  &durable.Rebased{ID: "r", Line: 14},
		Rebasing: &durable.PendingRebase{To: durable.Rebased{ID: "q", Line: 15}, Rebases: 16},
		Unique: &agentproto.Unique{Reseeded: []agentproto.Generator{{PID: 17, Program: "p", Library: "l"}},
			Repeats: []agentproto.Generator{{PID: 18, Program: "p", Library: "l"}}, More: 19},
		Strict: true, Paused: true, Pending: &durable.PendingTop{Name: "n", Owner: "o", Swaps: 20,
			Volumes: []string{"m"}}, Restoring: true,
		RestoringTo: &snapshot.Ref{ID: "z", Tag: "to"},
		Volumes:     []durable.Mount{{Name: "v", Path: "/p", Mode: durable.MountReadOnly}},
	}
	secrets := &r.Network.Secrets // compared separately, because the record does not contain secrets
	*secrets = []netproto.Secret{{Host: "h", Header: "X", Value: "v"}}
	requireSet(t, reflect.ValueOf(r), "record")
	*secrets = nil
	return r
}

// requireSet fails the test if a field of v is zero. In that case wholeRecord must be extended,
// because TestRecordRoundTrip can only check fields that are set.
func requireSet(t *testing.T, v reflect.Value, name string) {
	t.Helper()
	switch {
	case v.IsZero():
		t.Errorf("%s is not set", name)
	case v.Kind() == reflect.Pointer:
		requireSet(t, v.Elem(), name)
	case v.Kind() == reflect.Slice && v.Type().Elem() != reflect.TypeFor[netproto.Rule]():
		requireSet(t, v.Index(0), name)
	case v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[time.Time]():
		for i := range v.NumField() {
			requireSet(t, v.Field(i), name+"."+v.Type().Field(i).Name)
		}
	}
}

// Every field of a Record is stored and read back, and every field that is stored belongs to a
// field of Record.
func TestRecordRoundTrip(t *testing.T) {
	want, dir := wholeRecord(t), t.TempDir()
	stored := want.durable()
	stored.Branches = []string{"an earlier version of forkd stored them"}
	requireSet(t, reflect.ValueOf(stored), "durable.Sandbox")
	if err := Write(dir, &want); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(dir); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n%+v\n%+v", err, got, want)
	}
	if err := WriteSuspended(dir, &want); err != nil {
		t.Fatal(err)
	}
	want.PID, want.Protocol = 0, 0
	if got, err := ReadSuspended(dir); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("suspended: %v\n%+v\n%+v", err, got, want)
	}
}

// A record without a network setting can be neither written nor read. An unknown hold is an error, and
// does not mean that there is no hold.
func TestRecordWithoutANetwork(t *testing.T) {
	r, dir := wholeRecord(t), t.TempDir()
	r.Network = netclient.Setting{}
	if Write(dir, &r) == nil || WriteSuspended(dir, &r) == nil {
		t.Error("written")
	}
	d := wholeRecord(t)
	for _, h := range []snapshot.Hold{{Hosts: []string{"a.b"}, Answer: "none"},
		{Hosts: []string{"1.2.3.4"}, Answer: "wait"}, {Answer: "wait"}} {
		s := d.durable()
		s.Network.Hold = &h
		if got, err := fromDurable("f", s); err == nil {
			t.Errorf("hold %+v is read as %+v", h, got.Network)
		}
	}
	for _, text := range []string{"", "anything", "mode 0"} {
		s := d.durable()
		s.Network.Mode = text
		if got, err := fromDurable("f", s); err == nil {
			t.Errorf("mode %q is read as %+v", text, got.Network)
		}
	}
	s := d.durable()
	s.Network.Allow = []string{"a/b/c"}
	if _, err := fromDurable("f", s); err == nil {
		t.Error("a rule that is none is read")
	}
	s = d.durable()
	s.Limits.CPUs = -1
	if _, err := fromDurable("f", s); err == nil {
		t.Error("a limit that is none is read")
	}
}

// If a VMM uses a different protocol version, the error says so, whatever else is wrong with the
// record.
func TestProtocolIsToldFirst(t *testing.T) {
	for _, text := range []string{`{"vmm_protocol":1,"later":true}`, `{"version":7,"protocol":1}`} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, File), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Read(dir)
		if other := ProtocolError(0); !errors.As(err, &other) || other != 1 {
			t.Errorf("%s: %v", text, err)
		}
	}
}
