// Package budgets has tests that bound counts: what a fork, a branch and an idle sandbox cost in
// system calls, context switches, page faults, messages, threads and descriptors. A count hardly
// depends on the speed of the host, so a test can fail when it grows. Times are left to the
// benchmarks.
//
// The tests run the sandbox manager, the store and forkd-vmm, unmodified, with a stub as the guest.
// So they also run on a KVM that cannot run Linux. docs/testing.md lists the budgets.
package budgets
