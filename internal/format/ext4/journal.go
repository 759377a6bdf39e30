package ext4

import (
	"encoding/binary"
	"io"
)

// Bounds on the size of a journal, in blocks. Linux refuses a smaller journal. Linux writes all
// blocks of a journal in turn, so the disk's file on the host grows by the size of the journal.
const (
	minJournal = 1024
	maxJournal = 16384 // less than the largest extent, and less than the free blocks of group 0
)

// journalBlocks returns the size of the journal that mke2fs would choose for a file system of the
// given size in bytes, but at most maxJournal. The result is in blocks.
func journalBlocks(size int64) uint64 {
	switch blocks := size / BlockSize; {
	case blocks < 32<<10:
		return minJournal
	case blocks < 256<<10:
		return 4096
	case blocks < 512<<10:
		return 8192
	}
	return maxJournal
}

// writeJournal writes an empty journal, if the file system has one: its inode, and its superblock
// (Linux, Documentation/filesystems/ext4/journal.rst), whose numbers are big-endian.
func (l *layout) writeJournal(w io.WriterAt) error {
	if l.journalBlocks == 0 {
		return nil
	}
	be := binary.BigEndian
	s := make([]byte, 1024)
	be.PutUint32(s[0x0:], 0xc03b3998)
	be.PutUint32(s[0x4:], 4) // type of the block: superblock, version 2
	be.PutUint32(s[0xc:], BlockSize)
	be.PutUint32(s[0x10:], uint32(l.journalBlocks))
	be.PutUint32(s[0x14:], 1) // first block of the log
	be.PutUint32(s[0x18:], 1) // first commit ID
	copy(s[0x30:], l.uuid[:])
	be.PutUint32(s[0x40:], 1) // number of file systems that use the journal
	if _, err := w.WriteAt(s, int64(l.journal)*BlockSize); err != nil {
		return err
	}
	return l.writeInode(w, journalInode, 0o100600, 1, l.journal, l.journalBlocks)
}

// describeJournal adds the journal, if there is one, to a superblock of the file system.
func (l *layout) describeJournal(s []byte) {
	if l.journalBlocks == 0 {
		return
	}
	le.PutUint32(s[0x5c:], compat|0x4) // has_journal
	le.PutUint32(s[0xe0:], journalInode)
	s[0xfd] = 1 // the next fields are a copy of the inode's fields i_block and i_size
	putExtent(s[0x10c:], l.journal, l.journalBlocks)
	le.PutUint32(s[0x14c:], uint32(l.journalBlocks*BlockSize))
}
