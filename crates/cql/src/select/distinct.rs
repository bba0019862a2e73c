//! The columns and aggregates of a SELECT clause, each of them once. A clause can name thousands,
//! so they are not compared with each other.

use md5::{Digest, Md5};
use replica::OutputColumn;
use rt::hash::HashMap;
use std::fmt::Debug;

/// The columns that replicas return of each row.
#[derive(Default)]
pub(super) struct OutputSlots {
    /// The columns.
    pub columns: Vec<OutputColumn>,
    known: HashMap<OutputColumn, usize>,
}

impl OutputSlots {
    /// The slot of a column. Adds the column if it is missing.
    pub fn of(&mut self, column: OutputColumn) -> usize {
        *self.known.entry(column).or_insert_with(|| {
            self.columns.push(column);
            self.columns.len() - 1
        })
    }
}

/// Items in the order in which they came.
pub(super) struct Distinct<T> {
    /// The items.
    pub list: Vec<T>,
    /// Their places by a digest of their text. Clients choose the items, and could choose them so
    /// that simple hashes are the same.
    known: HashMap<[u8; 16], usize>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Self {
        Distinct { list: Vec::new(), known: HashMap::default() }
    }
}

impl<T: PartialEq + Debug> Distinct<T> {
    /// The place of an item. Adds the item if it is missing.
    pub fn place_of(&mut self, item: T) -> usize {
        let digest: [u8; 16] = Md5::digest(format!("{item:?}")).into();
        let known = self.known.get(&digest).copied().filter(|place| self.list[*place] == item);
        known.unwrap_or_else(|| {
            self.list.push(item);
            self.known.insert(digest, self.list.len() - 1);
            self.list.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::Counted;

    #[test]
    fn equal_items_have_one_place_and_others_are_not_compared() {
        Counted::take_comparisons();
        let mut distinct = Distinct::default();
        for n in 0..30_000 {
            assert_eq!(distinct.place_of(Counted(n % 20_000)), n % 20_000);
        }
        assert_eq!((distinct.list.len(), Counted::take_comparisons()), (20_000, 10_000));
    }
}
