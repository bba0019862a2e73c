//! The primitives of the wire form: a writer and a reader of framed bytes.

use bytes::Bytes;
use rt::Pieces;
use smallvec::SmallVec;

const FRAME: usize = 1 + 4;
/// Byte strings of at least this length are shared instead of copied.
const LARGE: usize = 8 << 10;

pub(super) struct Writer {
    out: Vec<u8>,
    /// Shared byte strings, and the index in `out` before which each belongs.
    elsewhere: SmallVec<[(usize, Bytes); 1]>,
}

impl Writer {
    pub(super) fn framed(version: u8) -> Writer {
        let mut out = Vec::with_capacity(256);
        out.push(version);
        out.extend_from_slice(&[0; 4]);
        Writer { out, elsewhere: SmallVec::new() }
    }

    /// A writer without a frame, for a part of another message.
    pub(super) fn plain() -> Writer {
        Writer { out: Vec::new(), elsewhere: SmallVec::new() }
    }

    /// The bytes written without a frame. They must contain no shared byte strings.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        debug_assert!(self.elsewhere.is_empty(), "shared byte strings would be lost");
        self.out
    }

    pub(super) fn finish(mut self) -> Pieces {
        let elsewhere: usize = self.elsewhere.iter().map(|(_, bytes)| bytes.len()).sum();
        debug_assert!(u32::try_from(self.out.len() + elsewhere).is_ok(), "the length of a message fits four bytes");
        debug_assert!(self.elsewhere.is_sorted_by_key(|(at, _)| *at), "shared bytes are in the order of the message");
        let len = (self.out.len() - FRAME + elsewhere) as u32;
        self.out[1..FRAME].copy_from_slice(&len.to_le_bytes());
        let mut own = Bytes::from(self.out);
        let mut pieces = SmallVec::new();
        let mut taken = 0;
        for (at, bytes) in self.elsewhere {
            pieces.push(own.split_to(at - taken));
            pieces.push(bytes);
            taken = at;
        }
        pieces.push(own);
        Pieces::from(pieces)
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.out.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn bool(&mut self, value: bool) {
        self.u8(value as u8);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.raw(bytes);
    }

    /// Like [`Writer::bytes`], but a large byte string is shared instead of copied.
    pub(super) fn shared(&mut self, bytes: &Bytes) {
        if bytes.len() < LARGE {
            return self.bytes(bytes);
        }
        self.u32(bytes.len() as u32);
        self.elsewhere.push((self.out.len(), bytes.clone()));
    }

    pub(super) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Writer, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub(super) fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Writer, &T)) {
        debug_assert!(u32::try_from(items.len()).is_ok(), "the length of a list fits four bytes");
        self.u32(items.len() as u32);
        items.iter().for_each(|item| write(self, item));
    }
}

/// A reader of pieces, which may be cut only between fields.
pub(super) struct Reader<'a> {
    owner: &'a Bytes,
    rest: &'a [u8],
    more: &'a [Bytes],
}

impl<'a> Reader<'a> {
    pub(super) fn framed(pieces: &'a [Bytes], version: u8) -> Option<Reader<'a>> {
        let (owner, more) = pieces.split_first()?;
        let mut reader = Reader { owner, rest: owner, more };
        if reader.u8()? != version {
            return None;
        }
        let len = reader.u32()? as usize;
        (len == reader.rest.len() + more.iter().map(Bytes::len).sum::<usize>()).then_some(reader)
    }

    /// A reader of bytes that were written without a frame.
    pub(super) fn plain(bytes: &'a Bytes) -> Reader<'a> {
        Reader { owner: bytes, rest: bytes, more: &[] }
    }

    /// Moves to the next piece, if this one is used up and there is another.
    #[cold]
    fn next_piece(&mut self) -> Option<()> {
        let (next, more) = self.more.split_first().filter(|_| self.rest.is_empty())?;
        (self.owner, self.rest, self.more) = (next, next, more);
        Some(())
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        loop {
            if let Some((head, tail)) = self.rest.split_first_chunk::<N>() {
                self.rest = tail;
                return Some(*head);
            }
            self.next_piece()?;
        }
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(super) fn bytes(&mut self) -> Option<Bytes> {
        let len = self.u32()? as usize;
        let slice = self.slice(len)?;
        Some(self.owner.slice_ref(slice))
    }

    /// The next `len` bytes, which must be in one piece.
    pub(super) fn slice(&mut self, len: usize) -> Option<&'a [u8]> {
        loop {
            if let Some((head, tail)) = self.rest.split_at_checked(len) {
                self.rest = tail;
                return Some(head);
            }
            self.next_piece()?;
        }
    }

    pub(super) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    pub(super) fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        Some(if self.bool()? { Some(read(self)?) } else { None })
    }

    pub(super) fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u32()?;
        (0..count).map(|_| read(self)).collect()
    }
}
