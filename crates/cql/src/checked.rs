//! Large values that were checked off the shard, before the statement is executed
//! ([`crate::term::large`]).

use bytes::Bytes;
use model::CqlType;
use model::types::collection::{self, ListBuilder};
use model::types::{self, ValueError, compare};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

/// A value that is valid and canonical for its type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckedValue {
    /// The value. Without its null elements, if it is an IN list.
    pub bytes: Bytes,
    /// The same elements as a set, if the value is an IN list.
    pub set: Option<SortedSet>,
    /// Whether the list had null elements.
    pub nulls: bool,
}

impl CheckedValue {
    /// A value that its maker has made valid and canonical.
    pub fn of(bytes: Bytes) -> CheckedValue {
        CheckedValue { bytes, set: None, nulls: false }
    }

    /// Checks a value of this type.
    pub fn new(ty: &CqlType, bytes: &Bytes, is_in: bool) -> Result<CheckedValue, ValueError> {
        let (mut bytes, mut nulls) = (bytes.clone(), false);
        if let Err(error) = types::validate(ty, &bytes) {
            let stripped = if is_in { collection::without_nulls(&bytes) } else { None };
            bytes = stripped.ok_or(error)?.into();
            types::validate(ty, &bytes)?;
            nulls = true;
        }
        if let Cow::Owned(canonical) = types::canonical(ty, &bytes)? {
            bytes = canonical.into();
        }
        let set = match ty {
            CqlType::List { elem, .. } if is_in => Some(SortedSet::new(elem, &bytes)?),
            _ => None,
        };
        Ok(CheckedValue { bytes, set, nulls })
    }
}

/// The distinct elements of a list, in the order of their type. Elements are distinct if their
/// bytes differ: the decimals 1 and 1.0 are two elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SortedSet {
    /// The elements as a list.
    list: Bytes,
    /// Where in the list the elements begin.
    starts: Arc<[u32]>,
    /// The number of elements that differ in the order of their type.
    unequal: usize,
    /// The SHA-256 of the list.
    digest: [u8; 32],
}

impl SortedSet {
    /// The elements of a valid list.
    pub fn new(elem: &CqlType, list: &[u8]) -> Result<SortedSet, ValueError> {
        let mut elements: Vec<&[u8]> = collection::elements(list)?.collect::<Result<_, _>>()?;
        elements.sort_unstable_by(|a, b| compare(elem, a, b).then_with(|| a.cmp(b)));
        elements.dedup();
        let differ = |pair: &&[&[u8]]| compare(elem, pair[0], pair[1]) != Ordering::Equal;
        let unequal = elements.len().min(1) + elements.windows(2).filter(differ).count();
        let mut builder = ListBuilder::default();
        let mut starts = Vec::with_capacity(elements.len());
        let mut at = 4;
        for element in &elements {
            at += 4;
            starts.push(u32::try_from(at).map_err(|_| ValueError::new("A list of more than 4 GiB"))?);
            at += element.len();
            builder.push(element);
        }
        let list: Bytes = builder.finish().into();
        let digest = Sha256::digest(&list).into();
        Ok(SortedSet { list, starts: starts.into(), unequal, digest })
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The number of elements that differ in the order of their type.
    pub fn unequal(&self) -> usize {
        self.unequal
    }

    /// The bytes of its elements.
    pub fn element_bytes(&self) -> usize {
        self.list.len() - 4 - 4 * self.starts.len()
    }

    /// A hash of the elements.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The elements as a serialized list.
    pub fn list(&self) -> &Bytes {
        &self.list
    }

    /// Whether an element equals this value in the order of the type.
    pub fn contains(&self, elem: &CqlType, value: &[u8]) -> bool {
        self.starts.binary_search_by(|start| compare(elem, self.element(*start), value)).is_ok()
    }

    fn element(&self, start: u32) -> &[u8] {
        let (head, rest) = self.list.split_at(start as usize);
        let len = head.last_chunk().map_or(0, |len| u32::from_be_bytes(*len));
        &rest[..len as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::types::{Decimal, Value};

    fn list(ty: &CqlType, values: Vec<Value>) -> Bytes {
        let ty = CqlType::list(ty.clone()).freeze();
        Value::List(values).encode(&ty).expect("it is valid").expect("it is not null").into()
    }

    fn in_list(ty: &CqlType, bytes: &Bytes) -> CheckedValue {
        CheckedValue::new(&CqlType::list(ty.clone()).freeze(), bytes, true).expect("it is valid")
    }

    #[test]
    fn an_in_list_is_a_set() {
        let given = list(&CqlType::Int, [7, -1, 7, 3, -1].map(Value::Int).to_vec());
        let set = in_list(&CqlType::Int, &given).set.expect("it is a list of IN");
        assert_eq!((set.len(), set.unequal(), set.is_empty()), (3, 3, false));
        assert_eq!(*set.list(), list(&CqlType::Int, [-1, 3, 7].map(Value::Int).to_vec()));
        for (value, found) in [(-2, false), (-1, true), (3, true), (5, false), (7, true), (8, false)] {
            assert_eq!(set.contains(&CqlType::Int, &i32::to_be_bytes(value)), found, "{value}");
        }
        let again = in_list(&CqlType::Int, set.list());
        assert_eq!(again.set.map(|set| *set.digest()), Some(*set.digest()), "order and duplicates do not matter");
    }

    #[test]
    fn equal_decimals_of_different_bytes_are_two_elements() {
        let decimals = [Decimal::new(0, 1), Decimal::new(1, 10), Decimal::new(0, 1)].map(Value::Decimal);
        let set = in_list(&CqlType::Decimal, &list(&CqlType::Decimal, decimals.to_vec())).set.expect("a list of IN");
        assert_eq!((set.len(), set.unequal()), (2, 1));
    }

    #[test]
    fn nulls_are_valid_only_in_an_in_list() {
        let with_null = Bytes::from_static(&[0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 4, 0, 0, 0, 9]);
        let checked = in_list(&CqlType::Int, &with_null);
        assert!(checked.nulls);
        assert_eq!(checked.bytes, list(&CqlType::Int, vec![Value::Int(9)]));
        let ty = CqlType::list(CqlType::Int).freeze();
        assert!(CheckedValue::new(&ty, &with_null, false).is_err());
        assert!(CheckedValue::new(&ty, &with_null.slice(..14), true).is_err());
    }

    #[test]
    fn an_empty_list_is_an_empty_set() {
        let set = in_list(&CqlType::Int, &list(&CqlType::Int, vec![])).set.expect("a list of IN");
        assert!(set.is_empty() && !set.contains(&CqlType::Int, &[0; 4]));
        assert_eq!(set.unequal(), 0);
    }
}
