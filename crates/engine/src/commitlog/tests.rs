//! Tests of the whole log: on a real disk, and (feature `sim`) on one that loses its power at every
//! write.

mod disk;
mod limits;
#[cfg(feature = "sim")]
mod power;
mod setup;
mod tail;
