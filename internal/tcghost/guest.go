package tcghost

// GuestCmdline returns kernel parameters for guests of VMs inside a machine, against faults of QEMU's emulation; real
// hosts need neither.
//
//   - norandmaps: with randomized addresses QEMU 7.2 collects translated code per page until clearing a page stalls.
//   - clearcpuid=cx16: a guest page fault (nested page tables) inside cmpxchg16b makes QEMU 7.2 return from the exit with
//     arithmetic leftovers in RFLAGS, trap and alignment check bits among them. Linux's allocator uses the instruction on
//     pages that are write-protected after a fork, and has another way without it.
func GuestCmdline() []string { return []string{"norandmaps", "clearcpuid=cx16"} }
