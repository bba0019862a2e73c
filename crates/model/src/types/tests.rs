//! Laws and known cases of types and values.

mod bytes;
mod names;
mod order;
mod strategy;
mod text;
