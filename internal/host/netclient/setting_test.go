package netclient

import (
	"reflect"
	"testing"

	"github.com/forkd/forkd/internal/proto/netproto"
)

// Forks of a snapshot have the network setting of the snapshot, without secrets.
func TestSettingsOutliveSnapshots(t *testing.T) {
	policy, err := netproto.ParsePolicy("allow", []string{"a.example", "10.0.0.0/8:80-90"}, []string{"udp/b.example:123"})
	if err != nil {
		t.Fatal(err)
	}
	for _, ech := range []bool{false, true} {
		policy.AllowECH = ech
		want := Setting{Policy: policy, Limits: netproto.Limits{BytesPerSecond: 1, PacketsPerSecond: 2, Connections: 3}}
		given := want
		given.Secrets = []netproto.Secret{{Host: "a.example", Header: "X", Value: "x"}}
		if got, err := FromSnapshot(given.ForSnapshot()); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
}
