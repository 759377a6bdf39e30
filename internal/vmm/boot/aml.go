package boot

import "encoding/binary"

// The AML constructs that this package's DSDT needs (ACPI 6.5 §20.2). Every function returns
// encoded bytes. Parameters for nested terms are also encoded bytes.

// Opcodes.
const (
	amlZero       = 0x00
	amlOne        = 0x01
	amlName       = 0x08
	amlByte       = 0x0a
	amlWord       = 0x0b
	amlDWord      = 0x0c
	amlString     = 0x0d
	amlQWord      = 0x0e
	amlScope      = 0x10
	amlBuffer     = 0x11
	amlPackage    = 0x12
	amlMethod     = 0x14
	amlDualName   = 0x2e
	amlRoot       = 0x5c // '\'
	amlExtPrefix  = 0x5b
	amlExtDevice  = 0x82
	amlArg0       = 0x68
	amlNotify     = 0x86
	amlEqual      = 0x93
	amlIf         = 0xa0
	amlSerialized = 1 << 3 // flag of a method; bits 0 to 2 of the same byte are the number of arguments
)

// Small and large resource descriptors, ACPI 6.5 §6.4.
const (
	resIO          = 0x47 // §6.4.2.5, 7 bytes
	resEndTag      = 0x79 // §6.4.2.9, 1 byte
	resMemory32    = 0x86 // §6.4.3.4
	resInterrupt   = 0x89 // §6.4.3.6
	resIODecode16  = 1
	resReadWrite   = 1
	resConsumer    = 1 << 0
	resEdge        = 1 << 1 // the bits for active high and exclusive are zero
	resMemory32Len = 9
	resOneIRQLen   = 6
)

// join concatenates terms.
func join(terms ...[]byte) []byte {
	var b []byte
	for _, t := range terms {
		b = append(b, t...)
	}
	return b
}

// nameSeg is a name of up to four characters, padded with underscores.
func nameSeg(name string) []byte {
	b := []byte("____")
	copy(b, name)
	return b
}

// integer is a constant in its shortest form.
func integer(v uint64) []byte {
	switch {
	case v == 0:
		return []byte{amlZero}
	case v == 1:
		return []byte{amlOne}
	case v <= 0xff:
		return []byte{amlByte, uint8(v)}
	case v <= 0xffff:
		return binary.LittleEndian.AppendUint16([]byte{amlWord}, uint16(v))
	case v <= 0xffffffff:
		return binary.LittleEndian.AppendUint32([]byte{amlDWord}, uint32(v))
	}
	return binary.LittleEndian.AppendUint64([]byte{amlQWord}, v)
}

// text is an ASCII string.
func text(s string) []byte { return append(append([]byte{amlString}, s...), 0) }

// eisaID is a compressed PNP identifier such as PNP0501 (ACPI 6.5 §19.3.4). It consists of three
// letters of 5 bits and four hexadecimal digits, most significant byte first.
func eisaID(vendor string, product uint16) []byte {
	var letters uint16
	for _, c := range []byte(vendor) {
		letters = letters<<5 | uint16(c-'A'+1)
	}
	b := binary.BigEndian.AppendUint16([]byte{amlDWord}, letters)
	return binary.BigEndian.AppendUint16(b, product)
}

// sized returns the length of body (PkgLength, ACPI 6.5 §20.2.4), followed by body. The length
// includes its own bytes.
func sized(body []byte) []byte {
	n := len(body)
	if n+1 < 1<<6 {
		return append([]byte{uint8(n + 1)}, body...)
	}
	// Bits 6 and 7 of the first byte say how many bytes of the length follow. Bits 0 to 3 are the
	// low 4 bits of the length.
	extra := 1
	for n+1+extra >= 1<<(4+8*extra) {
		extra++
	}
	n += 1 + extra
	b := []byte{uint8(extra<<6 | n&0xf)}
	for i := range extra {
		b = append(b, uint8(n>>(4+8*i)))
	}
	return append(b, body...)
}

// named is Name(name, value).
func named(name string, value []byte) []byte { return join([]byte{amlName}, nameSeg(name), value) }

// scopeSB is Scope(\_SB) { terms }.
func scopeSB(terms ...[]byte) []byte {
	return join([]byte{amlScope}, sized(join([]byte{amlRoot}, nameSeg("_SB"), join(terms...))))
}

// device is Device(name) { terms }.
func device(name string, terms ...[]byte) []byte {
	return join([]byte{amlExtPrefix, amlExtDevice}, sized(join(nameSeg(name), join(terms...))))
}

// pkg is Package() { elements }.
func pkg(elements ...[]byte) []byte {
	return join([]byte{amlPackage}, sized(join([]byte{uint8(len(elements))}, join(elements...))))
}

// method1 is Method(name, 1, Serialized) { terms }.
func method1(name string, terms ...[]byte) []byte {
	return join([]byte{amlMethod}, sized(join(nameSeg(name), []byte{1 | amlSerialized}, join(terms...))))
}

// ifArg0Is is If (Arg0 == v) { terms }.
func ifArg0Is(v uint64, terms ...[]byte) []byte {
	return join([]byte{amlIf}, sized(join([]byte{amlEqual, amlArg0}, integer(v), join(terms...))))
}

// notifySB is Notify(\_SB.name, code).
func notifySB(name string, code uint64) []byte {
	return join([]byte{amlNotify, amlRoot, amlDualName}, nameSeg("_SB"), nameSeg(name), integer(code))
}

// resources is ResourceTemplate() { descriptors }, a buffer that ends with an end tag. A zero in
// the end tag means that there is no checksum.
func resources(descriptors ...[]byte) []byte {
	body := join(join(descriptors...), []byte{resEndTag, 0})
	return join([]byte{amlBuffer}, sized(join(integer(uint64(len(body))), body)))
}

// ioPorts is IO(Decode16, port, port, 1, n).
func ioPorts(port uint16, n uint8) []byte {
	b := binary.LittleEndian.AppendUint16([]byte{resIO, resIODecode16}, port)
	b = binary.LittleEndian.AppendUint16(b, port)
	return append(b, 1, n)
}

// memory32 is Memory32Fixed(ReadWrite, addr, size).
func memory32(addr, size uint32) []byte {
	b := []byte{resMemory32, resMemory32Len, 0, resReadWrite}
	b = binary.LittleEndian.AppendUint32(b, addr)
	return binary.LittleEndian.AppendUint32(b, size)
}

// interrupt is Interrupt(ResourceConsumer, Edge, ActiveHigh, Exclusive) { gsi }.
func interrupt(gsi uint32) []byte {
	return binary.LittleEndian.AppendUint32([]byte{resInterrupt, resOneIRQLen, 0, resConsumer | resEdge, 1}, gsi)
}
