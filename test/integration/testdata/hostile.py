# Takes a virtio device away from its driver and makes the accesses that a program lists (package
# internal/vmm/bareguest). Pages of this process serve as the memory for the device.
#
#     hostile.py DIR SLOT COUNT
#
# writes the physical addresses of COUNT pages to DIR/pages, waits for DIR/program, and prints a message on the
# console when it has carried out the program.
import ctypes, mmap, os, struct, sys, time

PAGE, WINDOW = 4096, 0xD0000000 + int(sys.argv[2]) * 0x1000
os.chdir(sys.argv[1])
ctypes.CDLL(None).mlockall(3)  # nothing may be read from the disk once its device is gone
console = os.open("/dev/console", os.O_WRONLY | os.O_NOCTTY)

memory = mmap.mmap(-1, int(sys.argv[3]) * PAGE)
memory.write(b"\0" * len(memory))
ram = ctypes.addressof(ctypes.c_char.from_buffer(memory))
places = {}  # addresses, in this process, of physical pages
with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
    for at in range(ram, ram + len(memory), PAGE):
        pagemap.seek(at // PAGE * 8)
        places[(struct.unpack("<Q", pagemap.read(8))[0] & (1 << 55) - 1) * PAGE] = at
with open("pages.new", "w") as f:
    f.write(" ".join(map(str, places)))
os.rename("pages.new", "pages")
while not os.path.exists("program"):
    time.sleep(0.05)
with open("program", "rb") as f:
    ops = list(struct.iter_unpack("<BxxxIQ", f.read()))

with open("/proc/iomem") as f:
    name = next(line.split()[2] for line in f if line.strip().startswith("%08x-" % WINDOW))
with open("/sys/bus/platform/drivers/virtio-mmio/unbind", "w") as f:
    f.write(name)
window = mmap.mmap(os.open("/dev/mem", os.O_RDWR | os.O_SYNC), PAGE, offset=WINDOW)
places[WINDOW] = ctypes.addressof(ctypes.c_char.from_buffer(window))

TYPES = [ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64]
done = 0
for kind, address, value in ops:
    page, offset = address & ~(PAGE - 1), address & (PAGE - 1)
    width = 1 << (kind - 1) % 4
    if not 1 <= kind <= 8 or page not in places or offset + width > PAGE:
        continue  # a process of Linux cannot do this
    register = TYPES[(kind - 1) % 4].from_address(places[page] + offset)
    if kind <= 4:
        register.value = value
    else:
        register.value
    done += 1
os.write(console, b"\nhostile: %d accesses\n" % done)
