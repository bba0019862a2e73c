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
    use std::cell::Cell;
    use std::cmp::Ordering;

    thread_local! {
        static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    /// A name whose comparisons are counted.
    #[derive(Debug)]
    struct Counted(usize);

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other).is_eq()
        }
    }

    impl Eq for Counted {}

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    #[test]
    fn names_have_their_first_place() {
        let places = Places::of(["b", "x", "a", "b"], ["a", "b", "c", "b"]);
        assert_eq!(["a", "b", "c", "x"].map(|name| places.get(&name)), [Some(0), Some(1), None, None]);
    }

    #[test]
    fn names_are_not_compared_with_each_field() {
        const NAMES: usize = 50_000;
        const FIELDS: usize = 4_000;
        COMPARISONS.set(0);
        let places = Places::of((0..NAMES).map(|n| Counted(n % FIELDS)), (0..FIELDS).map(Counted));
        assert!((0..FIELDS).all(|field| places.get(&Counted(field)) == Some(field)));
        assert!(COMPARISONS.get() < 100 * (NAMES + FIELDS), "{} comparisons", COMPARISONS.get());
    }
}
