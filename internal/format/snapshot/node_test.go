package snapshot

import (
	"strings"
	"testing"
)

func TestIDsNameTheirNode(t *testing.T) {
	a, b := NodeOf("node-a"), NodeOf("node-b")
	if a == b || a == (Node{}) || NodeOf("") != (Node{}) {
		t.Fatalf("nodes %v, %v, %v", a, b, NodeOf(""))
	}
	seen := map[string]bool{}
	for range 1000 {
		id := a.NewID()
		if n, err := NodeOfID(id); err != nil || n != a {
			t.Fatalf("%s: node %v, %v", id, n, err)
		}
		if err := CheckID(id); err != nil || seen[id[:6]+id[14:]] {
			t.Fatalf("%s: %v, seen %v", id, err, seen)
		}
		seen[id[:6]+id[14:]] = true
	}
	other := 0
	for range 100 {
		if n, err := NodeOfID(Node{}.NewID()); err != nil {
			t.Fatal(err)
		} else if n != a {
			other++
		}
	}
	if other < 99 {
		t.Errorf("%d of 100 ids of hosts without a name have another node", other)
	}
	for _, bad := range []string{"", "sb-", strings.Repeat("a", 25), strings.Repeat("A", 26), "../../etc/passwd",
		strings.Repeat("b", 26)} {
		if n, err := NodeOfID(bad); err == nil {
			t.Errorf("%q: node %v", bad, n)
		}
	}
}

func TestNamesOfNodes(t *testing.T) {
	for name, want := range map[string]bool{"a": true, "ip-10-0-0-1.ec2.internal": true, "": false, "-a": false,
		"a.": false, "A": false, "a b": false, "a/b": false, strings.Repeat("a", 254): false,
		strings.Repeat("a", 253): true} {
		if err := CheckNode(name); (err == nil) != want {
			t.Errorf("%.40q: %v", name, err)
		}
	}
}
