//! Finds names in a list of columns or fields. Clients can give many names, and types can have many
//! fields.

use std::collections::BTreeMap;

/// The places of some names in a list. The names and the list are read once, so that the time does
/// not depend on their product.
///
/// The map is ordered: clients choose the names, and could choose them so that hashes are the same.
#[derive(Debug)]
pub struct Places<N>(BTreeMap<N, Option<usize>>);

impl<N: Ord> Places<N> {
    /// Finds `names` in `list`.
    pub fn of(names: impl IntoIterator<Item = N>, list: impl IntoIterator<Item = N>) -> Self {
        let mut places: BTreeMap<N, Option<usize>> = names.into_iter().map(|name| (name, None)).collect();
        for (at, name) in list.into_iter().enumerate() {
            if let Some(place) = places.get_mut(&name) {
                place.get_or_insert(at);
            }
        }
        Places(places)
    }

    /// The first place of a name in the list. `None` if the list does not have it, or if the name
    /// was not given.
    pub fn get(&self, name: &N) -> Option<usize> {
        self.0.get(name).copied().flatten()
    }
}

/// An index of a list of names, which it does not contain: the places of the list, ordered by name.
#[derive(Clone, Debug)]
pub(super) struct NameIndex(Box<[u32]>);

impl NameIndex {
    /// An index of `len` names, of which `name_at` is the one at a place.
    pub fn of<N: Ord>(len: usize, name_at: impl Fn(usize) -> N) -> Self {
        let mut places: Box<[u32]> = (0..len).map_while(|place| u32::try_from(place).ok()).collect();
        places.sort_by_key(|place| name_at(*place as usize));
        NameIndex(places)
    }

    /// The first place of a name in the list of which this is the index.
    pub fn find<N: Ord>(&self, wanted: &N, name_at: impl Fn(usize) -> N) -> Option<usize> {
        let at = self.0.partition_point(|place| name_at(*place as usize) < *wanted);
        let place = *self.0.get(at)? as usize;
        (name_at(place) == *wanted).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::Counted;

    #[test]
    fn names_have_their_first_place() {
        let places = Places::of(["b", "x", "a", "b"], ["a", "b", "c", "b"]);
        assert_eq!(["a", "b", "c", "x"].map(|name| places.get(&name)), [Some(0), Some(1), None, None]);
    }

    #[test]
    fn names_are_not_compared_with_each_field() {
        const NAMES: usize = 50_000;
        const FIELDS: usize = 4_000;
        Counted::take_comparisons();
        let places = Places::of((0..NAMES).map(|n| Counted(n % FIELDS)), (0..FIELDS).map(Counted));
        assert!((0..FIELDS).all(|field| places.get(&Counted(field)) == Some(field)));
        let comparisons = Counted::take_comparisons();
        assert!(comparisons < 100 * (NAMES + FIELDS), "{comparisons} comparisons");
    }

    #[test]
    fn an_index_finds_the_first_place() {
        let names = ["b", "a", "c", "a", "b"];
        let index = NameIndex::of(names.len(), |at| names[at]);
        assert_eq!(
            ["a", "b", "c", "d", ""].map(|name| index.find(&name, |at| names[at])),
            [Some(1), Some(0), Some(2), None, None]
        );
    }

    #[test]
    fn an_index_is_not_searched_name_by_name() {
        const NAMES: usize = 4_000;
        let index = NameIndex::of(NAMES, Counted);
        Counted::take_comparisons();
        assert!((0..NAMES).all(|name| index.find(&Counted(name), Counted) == Some(name)));
        let comparisons = Counted::take_comparisons();
        assert!(comparisons < 20 * NAMES, "{comparisons} comparisons");
    }
}
