//! Large bound values, checked off the shard.
//!
//! A list of millions of elements takes long to validate, to sort and to hash. A request with such
//! a value does this once, on the helper thread of its shard, before the statement is executed. The
//! execution then uses the [`CheckedValue`] as it is. Small values take none of these steps: they
//! are validated where they are used.

use super::wrong_value;
use crate::api::{BoundValue, ColumnSpec};
use crate::checked::CheckedValue;
use crate::error::Error;

/// A value of a type with parts that has more bytes than this is checked off the shard. So is a
/// longer JSON text.
pub const LARGE_VALUE: usize = 64 << 10;

/// Whether a value is checked off the shard.
#[inline]
pub fn is_large(value: &BoundValue) -> bool {
    matches!(value, BoundValue::Value(bytes) if bytes.len() > LARGE_VALUE)
}

/// Checks the large values of a request on the helper thread. `in_lists` has the variables that are
/// IN lists.
pub async fn checked(
    values: &[BoundValue],
    variables: &[ColumnSpec],
    in_lists: &[u16],
) -> Result<Vec<BoundValue>, Error> {
    let mut out = values.to_vec();
    for (number, (value, spec)) in out.iter_mut().zip(variables).enumerate() {
        let BoundValue::Value(bytes) = &*value else { continue };
        if !is_large(value) || !spec.ty.has_parts() {
            continue;
        }
        let (ty, bytes) = (spec.ty.clone(), bytes.clone());
        let is_in = in_lists.iter().any(|list| usize::from(*list) == number);
        let checked = rt::offload::run(move || CheckedValue::new(&ty, &bytes, is_in)).await;
        *value = BoundValue::Checked(Box::new(checked.map_err(|error| wrong_value(spec, &error))?));
    }
    Ok(out)
}
