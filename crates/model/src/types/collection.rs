//! Reading and building the bytes of frozen collections, tuples, user types and vectors, without
//! decoding elements.
//!
//! Lists and sets are a 32-bit count and, per element, a 32-bit length and the bytes; maps
//! alternate keys and values. Tuples and user types are fields of a 32-bit length (-1 is null) and
//! the bytes; trailing fields may be missing. The iterators borrow, allocate nothing, and end after
//! their first error.

use std::cmp::Ordering;

use super::{CqlType, ValueError, compare, vint};

/// Takes a big-endian `i32` off the front.
#[inline]
fn take_i32(input: &mut &[u8]) -> Result<i32, ValueError> {
    let (head, rest) = input.split_first_chunk::<4>().ok_or_else(ValueError::truncated)?;
    *input = rest;
    Ok(i32::from_be_bytes(*head))
}

/// Takes a length and that many bytes off the front; a negative length is null.
#[inline]
fn take_value<'a>(input: &mut &'a [u8]) -> Result<Option<&'a [u8]>, ValueError> {
    let Ok(len) = usize::try_from(take_i32(input)?) else { return Ok(None) };
    let (value, rest) = input.split_at_checked(len).ok_or_else(ValueError::truncated)?;
    *input = rest;
    Ok(Some(value))
}

#[inline]
fn put_value(value: &[u8], out: &mut Vec<u8>) {
    put_len(value.len(), out);
    out.extend_from_slice(value);
}

#[inline]
fn put_len(len: usize, out: &mut Vec<u8>) {
    let len = i32::try_from(len).expect("a value is no larger than a frame, so below 2 GiB");
    out.extend_from_slice(&len.to_be_bytes());
}

/// The elements of a frozen list or set, or the alternating keys and values of a map.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    rest: &'a [u8],
    left: u64,
}

impl<'a> Elements<'a> {
    /// The number of elements, by the count, that have not been read.
    pub fn remaining(&self) -> u64 {
        self.left
    }

    /// The bytes that were not read yet; none after the last element of a valid value.
    pub fn trailing(&self) -> &'a [u8] {
        self.rest
    }

    /// The next element. A malformed one ends the sequence.
    #[inline]
    pub(super) fn next_lenient(&mut self) -> Option<Option<&'a [u8]>> {
        self.left = self.left.checked_sub(1)?;
        match take_value(&mut self.rest) {
            Ok(value) => Some(value),
            Err(_) => {
                self.left = 0;
                None
            }
        }
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<&'a [u8], ValueError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let item = match take_value(&mut self.rest) {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(ValueError::new("null is not supported inside collections")),
            Err(error) => Err(error),
        };
        if item.is_err() {
            self.left = 0;
        }
        Some(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, usize::try_from(self.left).ok())
    }
}

pub(super) fn counted(bytes: &[u8], per_entry: u64) -> Result<Elements<'_>, ValueError> {
    let mut rest = bytes;
    let count = take_i32(&mut rest)?;
    let count = u64::try_from(count).map_err(|_| ValueError::new(format!("Negative collection size {count}")))?;
    Ok(Elements { rest, left: count * per_entry })
}

/// The elements of a frozen list or set.
#[inline]
pub fn elements(bytes: &[u8]) -> Result<Elements<'_>, ValueError> {
    counted(bytes, 1)
}

/// The list without its null elements. `None` if it has no null element. The bytes need not be a
/// valid list.
pub fn without_nulls(bytes: &[u8]) -> Option<Vec<u8>> {
    let elements = || {
        let mut elements = elements(bytes).ok()?;
        Some(std::iter::from_fn(move || elements.next_lenient()))
    };
    let nulls = elements()?.filter(Option::is_none).count();
    let stored = elements()?.count();
    if nulls == 0 || stored != count(bytes).ok()? {
        return None;
    }
    Some(build_list(elements()?.flatten()))
}

/// The number of elements (entries, for a map) by the count of a frozen collection.
pub fn count(bytes: &[u8]) -> Result<usize, ValueError> {
    Ok(elements(bytes)?.left as usize)
}

/// The entries of a frozen map.
#[derive(Clone, Debug)]
pub struct Pairs<'a>(Elements<'a>);

impl<'a> Pairs<'a> {
    /// The bytes that were not read yet; none after the last entry of a valid value.
    pub fn trailing(&self) -> &'a [u8] {
        self.0.rest
    }
}

impl<'a> Iterator for Pairs<'a> {
    type Item = Result<(&'a [u8], &'a [u8]), ValueError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let key = match self.0.next()? {
            Ok(key) => key,
            Err(error) => return Some(Err(error)),
        };
        Some(self.0.next()?.map(|value| (key, value)))
    }
}

/// The entries of a frozen map.
#[inline]
pub fn pairs(bytes: &[u8]) -> Result<Pairs<'_>, ValueError> {
    counted(bytes, 2).map(Pairs)
}

#[inline]
pub(super) fn elements_lenient(bytes: &[u8], per_entry: u64) -> Elements<'_> {
    counted(bytes, per_entry).unwrap_or(Elements { rest: &[], left: 0 })
}

/// The fields of a tuple or a value of a user type; `None` is a null field. Missing trailing fields
/// do not appear.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// The next field, null if it is missing or malformed.
    #[inline]
    pub(super) fn next_lenient(&mut self) -> Option<&'a [u8]> {
        take_value(&mut self.rest).unwrap_or_else(|_| {
            self.rest = &[];
            None
        })
    }

    /// Whether all bytes have been read.
    pub fn is_done(&self) -> bool {
        self.rest.is_empty()
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Option<&'a [u8]>, ValueError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let item = take_value(&mut self.rest);
        if item.is_err() {
            self.rest = &[];
        }
        Some(item)
    }
}

/// The fields of a tuple or a value of a user type.
#[inline]
pub fn fields(bytes: &[u8]) -> Fields<'_> {
    Fields { rest: bytes }
}

/// The elements of a vector: side by side when their width is fixed, else each after its length as
/// a vint.
#[derive(Clone, Debug)]
pub struct VectorElements<'a> {
    rest: &'a [u8],
    left: u32,
    width: Option<usize>,
}

impl<'a> VectorElements<'a> {
    /// The bytes that were not read yet; none after the last element of a valid value.
    pub fn trailing(&self) -> &'a [u8] {
        self.rest
    }

    fn take(&mut self) -> Option<&'a [u8]> {
        let mut rest = self.rest;
        let len = match self.width {
            Some(width) => width,
            None => usize::try_from(vint::read_unsigned(&mut rest)?).ok()?,
        };
        let (value, rest) = rest.split_at_checked(len)?;
        self.rest = rest;
        Some(value)
    }
}

impl<'a> Iterator for VectorElements<'a> {
    type Item = Result<&'a [u8], ValueError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let item = self.take();
        if item.is_none() {
            self.left = 0;
        }
        Some(item.ok_or_else(ValueError::truncated))
    }
}

/// The elements of a vector of `dim` values of type `elem`.
pub fn vector_elements<'a>(elem: &CqlType, dim: u32, bytes: &'a [u8]) -> VectorElements<'a> {
    VectorElements { rest: bytes, left: dim, width: elem.fixed_width() }
}

/// Builds a frozen list element by element; also a set, if the elements come in order.
#[derive(Debug)]
pub struct ListBuilder {
    out: Vec<u8>,
    count: usize,
}

impl Default for ListBuilder {
    fn default() -> ListBuilder {
        ListBuilder { out: vec![0; 4], count: 0 }
    }
}

impl ListBuilder {
    /// Appends an element.
    #[inline]
    pub fn push(&mut self, element: &[u8]) {
        put_value(element, &mut self.out);
        self.count += 1;
    }

    /// The list.
    pub fn finish(mut self) -> Vec<u8> {
        set_count(self.count, &mut self.out);
        self.out
    }
}

/// A frozen list of these elements; also a set, if they are sorted already.
pub fn build_list<I>(elements: I) -> Vec<u8>
where
    I: IntoIterator,
    I::Item: AsRef<[u8]>,
{
    let mut list = ListBuilder::default();
    elements.into_iter().for_each(|element| list.push(element.as_ref()));
    list.finish()
}

/// A frozen map of entries that are sorted by key already.
pub fn build_map_sorted<I, K, V>(entries: I) -> Vec<u8>
where
    I: IntoIterator<Item = (K, V)>,
    K: AsRef<[u8]>,
    V: AsRef<[u8]>,
{
    let mut out = vec![0; 4];
    let mut count = 0;
    for (key, value) in entries {
        put_value(key.as_ref(), &mut out);
        put_value(value.as_ref(), &mut out);
        count += 1;
    }
    set_count(count, &mut out);
    out
}

fn set_count(count: usize, out: &mut [u8]) {
    let count = i32::try_from(count).expect("a collection fits in a frame, so it has below 2^31 elements");
    out[..4].copy_from_slice(&count.to_be_bytes());
}

/// A frozen set: the elements in the order of their type, without duplicates.
pub fn build_set<B: AsRef<[u8]>>(elem: &CqlType, mut elements: Vec<B>) -> Vec<u8> {
    elements.sort_by(|a, b| compare(elem, a.as_ref(), b.as_ref()));
    elements.dedup_by(|a, b| compare(elem, a.as_ref(), b.as_ref()) == Ordering::Equal);
    build_list(elements)
}

/// A frozen map: the entries in the order of the key's type. Of equal keys, the last one is kept.
pub fn build_map<K: AsRef<[u8]>, V: AsRef<[u8]>>(key: &CqlType, mut entries: Vec<(K, V)>) -> Vec<u8> {
    entries.sort_by(|a, b| compare(key, a.0.as_ref(), b.0.as_ref()));
    entries.dedup_by(|later, kept| {
        let same = compare(key, later.0.as_ref(), kept.0.as_ref()) == Ordering::Equal;
        if same {
            std::mem::swap(later, kept);
        }
        same
    });
    build_map_sorted(entries)
}

/// A tuple or a value of a user type; `None` is a null field.
pub fn build_tuple<I, B>(fields: I) -> Vec<u8>
where
    I: IntoIterator<Item = Option<B>>,
    B: AsRef<[u8]>,
{
    let mut out = Vec::new();
    for field in fields {
        match field {
            Some(value) => put_value(value.as_ref(), &mut out),
            None => out.extend_from_slice(&(-1i32).to_be_bytes()),
        }
    }
    out
}

/// A tuple or a value of a user type with `len` fields, of which these are given, in order. The
/// others are null.
pub fn build_sparse_tuple<B: AsRef<[u8]>>(len: usize, given: impl IntoIterator<Item = (usize, B)>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut next = 0;
    for (at, value) in given {
        put_nulls(at - next, &mut out);
        put_value(value.as_ref(), &mut out);
        next = at + 1;
    }
    put_nulls(len - next, &mut out);
    out
}

/// Appends `count` null fields of a tuple or user type.
pub(super) fn put_nulls(count: usize, out: &mut Vec<u8>) {
    // All bits of the length -1 are set.
    out.resize(out.len() + count * NULL_BYTES, 0xff);
}

/// The bytes of a null field: its length, -1.
pub const NULL_BYTES: usize = size_of::<i32>();

/// A vector of values of type `elem`.
pub fn build_vector<I>(elem: &CqlType, elements: I) -> Vec<u8>
where
    I: IntoIterator,
    I::Item: AsRef<[u8]>,
{
    let variable = elem.fixed_width().is_none();
    let mut out = Vec::new();
    for element in elements {
        let element = element.as_ref();
        if variable {
            vint::write_unsigned(element.len() as u64, &mut out);
        }
        out.extend_from_slice(element);
    }
    out
}
