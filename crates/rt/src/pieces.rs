//! A message as a sequence of buffers that need not be contiguous: a page's rows are sent from the
//! memory where they were built.

use bytes::{Bytes, BytesMut};
use smallvec::{SmallVec, smallvec};

/// A message between shards or nodes, in one piece or several.
#[derive(Clone, Debug, Default)]
pub struct Pieces(SmallVec<[Bytes; 3]>);

impl Pieces {
    /// The pieces, in order.
    #[inline]
    pub fn iter(&self) -> std::slice::Iter<'_, Bytes> {
        self.0.iter()
    }

    /// The total number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.iter().map(Bytes::len).sum()
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.iter().all(Bytes::is_empty)
    }

    /// Joins the pieces; copies only if there are several.
    #[inline]
    pub fn join(mut self) -> Bytes {
        if let [_] = self.0[..] {
            return self.0.swap_remove(0);
        }
        let mut whole = BytesMut::with_capacity(self.len());
        self.iter().for_each(|piece| whole.extend_from_slice(piece));
        whole.freeze()
    }
}

impl From<Bytes> for Pieces {
    #[inline]
    fn from(whole: Bytes) -> Pieces {
        Pieces(smallvec![whole])
    }
}

impl From<SmallVec<[Bytes; 3]>> for Pieces {
    #[inline]
    fn from(pieces: SmallVec<[Bytes; 3]>) -> Pieces {
        Pieces(pieces)
    }
}
