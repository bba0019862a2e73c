//! The pieces of a refresh, from before the load is recorded until this shard has attached them.

use sstable::SstablePath;
use std::cell::RefCell;

/// See the module. Once the load is recorded, a restart completes it and opens the pieces. So a
/// truncation names them in the replay filters. It leaves their files alone, because an unfinished
/// load needs them: the pieces are removed instead of attached.
#[derive(Default)]
pub(crate) struct Loading(RefCell<Vec<Piece>>);

struct Piece {
    place: SstablePath,
    is_truncated: bool,
}

impl Loading {
    /// Adds the pieces of a load that begins.
    pub fn begin(&self, places: Vec<SstablePath>) {
        let mut all = self.0.borrow_mut();
        for place in places {
            debug_assert!(!all.iter().any(|piece| piece.place == place), "a piece is loaded once");
            all.push(Piece { place, is_truncated: false });
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// All of them.
    pub fn places(&self) -> Vec<SstablePath> {
        self.0.borrow().iter().map(|piece| piece.place.clone()).collect()
    }

    /// Whether a piece is to be attached.
    pub fn waits(&self, place: &SstablePath) -> bool {
        self.0.borrow().iter().any(|piece| piece.place == *place && !piece.is_truncated)
    }

    /// Marks pieces as truncated.
    pub fn truncated(&self, places: &[SstablePath]) {
        let mut all = self.0.borrow_mut();
        all.iter_mut().filter(|piece| places.contains(&piece.place)).for_each(|piece| piece.is_truncated = true);
    }

    /// Drops a piece. Returns whether it may be attached: it was added and not truncated since.
    pub fn end(&self, place: &SstablePath) -> bool {
        let mut all = self.0.borrow_mut();
        let known = all.iter().position(|piece| piece.place == *place);
        known.is_some_and(|at| !all.swap_remove(at).is_truncated)
    }
}
