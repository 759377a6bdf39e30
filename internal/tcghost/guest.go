package tcghost

// GuestCmdline returns kernel parameters for guests of VMs inside a machine, against faults of older QEMUs; real
// hosts need neither.
//
//   - norandmaps: with randomized addresses QEMU 7.2 collects translated code per page until clearing a page stalls.
//   - clearcpuid=cx16: after cmpxchg16b QEMU 7.2 has operands of earlier instructions in RFLAGS, trap and alignment check
//     bits among them, and an exit that follows saves them. Linux's allocator uses the instruction on pages that are
//     write-protected after a fork, and has another way without it.
func GuestCmdline() []string { return []string{"norandmaps", "clearcpuid=cx16"} }
