//! One byte string per value: sets are sorted without duplicates, maps by key, at every level.
//!
//! Drivers send sets and maps in any order, but the order of keys, equality and digests are decided
//! by bytes. So every bound value and literal is made canonical before it is stored or compared.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::{CqlType, ValueError, collection, compare};

/// The canonical form of `bytes`, a valid value of type `ty`. Borrowed if they are canonical
/// already; without a set or map in the type they are not even read. Of equal keys in a map, the
/// last one is kept.
#[inline]
pub fn canonical<'a>(ty: &CqlType, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, ValueError> {
    match ty.native_name() {
        Some(_) => Ok(Cow::Borrowed(bytes)),
        None => canonical_of_parts(ty, bytes),
    }
}

/// The same for types that consist of other types.
fn canonical_of_parts<'a>(ty: &CqlType, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, ValueError> {
    let orders_elements = |t: &CqlType| matches!(t, CqlType::Set { .. } | CqlType::Map { .. });
    if bytes.is_empty() || !ty.any(&mut { orders_elements }) {
        return Ok(Cow::Borrowed(bytes));
    }
    let all = |elem: &CqlType| -> Result<Vec<Cow<'a, [u8]>>, ValueError> {
        collection::elements(bytes)?.map(|element| canonical(elem, element?)).collect()
    };
    Ok(match ty {
        CqlType::List { elem, .. } => {
            let elements = all(elem)?;
            if unchanged(&elements) { bytes.into() } else { collection::build_list(elements).into() }
        }
        CqlType::Set { elem, .. } => {
            let elements = all(elem)?;
            let ascending = elements.windows(2).all(|pair| compare(elem, &pair[0], &pair[1]) == Ordering::Less);
            if ascending && unchanged(&elements) { bytes.into() } else { collection::build_set(elem, elements).into() }
        }
        CqlType::Map { key, value, .. } => {
            let entries = collection::pairs(bytes)?
                .map(|pair| {
                    let (k, v) = pair?;
                    Ok((canonical(key, k)?, canonical(value, v)?))
                })
                .collect::<Result<Vec<_>, ValueError>>()?;
            let ascending = entries.windows(2).all(|pair| compare(key, &pair[0].0, &pair[1].0) == Ordering::Less);
            let same = unchanged(entries.iter().flat_map(|(k, v)| [k, v]));
            if ascending && same { bytes.into() } else { collection::build_map(key, entries).into() }
        }
        CqlType::Vector { elem, dim } => {
            let elements = collection::vector_elements(elem, *dim, bytes)
                .map(|element| canonical(elem, element?))
                .collect::<Result<Vec<_>, _>>()?;
            if unchanged(&elements) { bytes.into() } else { collection::build_vector(elem, elements).into() }
        }
        CqlType::Tuple(types) => fields(types.iter(), bytes)?,
        CqlType::Udt(user_type) => fields(user_type.fields.iter().map(|(_, ty)| ty), bytes)?,
        _ => bytes.into(),
    })
}

fn unchanged<'c, 'a: 'c>(elements: impl IntoIterator<Item = &'c Cow<'a, [u8]>>) -> bool {
    elements.into_iter().all(|element| matches!(element, Cow::Borrowed(_)))
}

fn fields<'a, 't>(types: impl Iterator<Item = &'t CqlType>, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, ValueError> {
    let fields = collection::fields(bytes)
        .zip(types)
        .map(|(field, ty)| field?.map(|field| canonical(ty, field)).transpose())
        .collect::<Result<Vec<_>, _>>()?;
    let same = unchanged(fields.iter().flatten());
    Ok(if same { bytes.into() } else { collection::build_tuple(fields).into() })
}
