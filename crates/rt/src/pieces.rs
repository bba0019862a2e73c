//! Bytes that follow each other and need not lie together: a page's rows go out from where they were built.

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

    /// Bytes in all of them.
    #[inline]
    pub fn len(&self) -> usize {
        self.iter().map(Bytes::len).sum()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.iter().all(Bytes::is_empty)
    }

    /// All in one piece: copied, if there are several.
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
