package bochs

import (
	"fmt"
	"path/filepath"
	"strings"
)

// CPU is a processor model of Bochs.
type CPU string

// Models with VMX on which a Linux host can run guests with several vCPUs. Linux hosts on the other
// models with VMX cannot run such guests.
const (
	Skylake CPU = "corei7_skylake_x"
	Haswell CPU = "corei7_haswell_4770"
)

// Host is one emulated Intel host.
type Host struct {
	CPU      CPU
	KVMIntel []string // options of the module kvm-intel, such as "ept=0"
}

// instructionsPerSecond is the number of instructions that count as a second in the host, and the
// rate of the TSC. It is close to the highest real speed of Bochs.
const instructionsPerSecond = 250_000_000

// Memory in MiB. The emulated host has guestMemory. Bochs keeps heldMemory of it in RAM and swaps
// the rest to a file.
const (
	guestMemory = 4096
	heldMemory  = 2048
)

// cmdline is the kernel's command line. It sets the frequency of the TSC, because Bochs does not
// fill in the CPUID leaf for that frequency. After a panic the host halts. The watcher then reads
// the message on the console and ends the run.
var cmdline = strings.Join([]string{
	"console=ttyS0,115200", "quiet", "mitigations=off", "nokaslr", "panic=0", "norandmaps",
	fmt.Sprintf("tsc_early_khz=%d", instructionsPerSecond/1000),
}, " ")

// apicvOff is an option that kvm-intel always gets, because Bochs 3.0 loses interrupts of guests if
// virtual interrupt delivery is on.
const apicvOff = "enable_apicv=0"

func (h Host) moduleOptions() string {
	return strings.Join(append([]string{apicvOff}, h.KVMIntel...), " ")
}

// configuration returns the bochsrc, Bochs's configuration file. It disables devices that would
// affect the real host, or confines them to dir. The display listens on a port, which confine makes
// unreachable. Messages are not logged, because Bochs logs every EPT violation.
func (h Host) configuration(e Emulator, dir string) string {
	in := func(name string) string { return filepath.Join(dir, name) }
	return strings.Join([]string{
		`config_interface: textconfig`,
		`display_library: rfb, options="timeout=0,no_gui_console"`,
		fmt.Sprintf(`cpu: model=%s, count=1, ips=%d, reset_on_triple_fault=0`, h.CPU, instructionsPerSecond),
		fmt.Sprintf(`memory: guest=%d, host=%d`, guestMemory, heldMemory),
		fmt.Sprintf(`romimage: file="%s/BIOS-bochs-latest", options=fastboot`, e.share()),
		fmt.Sprintf(`vgaromimage: file="%s/VGABIOS-lgpl-latest"`, e.share()),
		`clock: sync=none, time0=utc`,
		`ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14`,
		`ata1: enabled=1, ioaddr1=0x170, ioaddr2=0x370, irq=15`,
		fmt.Sprintf(`ata0-master: type=disk, mode=flat, path="%s"`, in(fileDisk)),
		fmt.Sprintf(`ata1-master: type=cdrom, path="%s", status=inserted`, in(fileCD)),
		`boot: cdrom`,
		fmt.Sprintf(`com1: enabled=1, mode=file, dev="%s"`, in(fileConsole)),
		`sound: driver=dummy`,
		`speaker: enabled=0`,
		fmt.Sprintf(`log: "%s"`, in(fileLog)),
		`panic: action=fatal`,
		`error: action=ignore`,
		`info: action=ignore`,
		`debug: action=ignore`,
		``,
	}, "\n")
}
