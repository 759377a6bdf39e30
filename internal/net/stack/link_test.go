package stack

import "testing"

// The memory of packets that wait for guests is bounded, both for each sandbox and for all
// sandboxes together. Each sandbox has a small part of this memory even if other sandboxes have
// used up the rest.
func TestQueuesHaveARoom(t *testing.T) {
	host := NewHost(10)
	host.queues.most = queueBytes
	greedy, other := &link{host: host}, &link{host: host}
	if !greedy.takeLocked(fewBytes) || !greedy.takeLocked(queueBytes-fewBytes) {
		t.Fatal("a sandbox alone has no room")
	}
	if greedy.takeLocked(1) {
		t.Error("a sandbox has more than its part")
	}
	if !other.takeLocked(fewBytes) {
		t.Error("another sandbox has no room")
	}
	if other.takeLocked(2 * fewBytes) {
		t.Error("the sandboxes together have more than the room")
	}
	greedy.giveLocked(queueBytes)
	if !other.takeLocked(2 * fewBytes) {
		t.Error("there is no room after a sandbox has given its part back")
	}
	other.giveLocked(3 * fewBytes)
	if n := host.queues.used.Load(); n != 0 {
		t.Errorf("%d bytes are counted for empty queues", n)
	}
}
