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
}
