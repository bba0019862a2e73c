//! Synchronisation within a shard: gates, cancellation, deadlines, channels.
//!
//! The channels are tokio's (also usable between threads). `Gate` and `Cancel` are for one shard.

mod cancel;
mod gate;
pub(crate) mod waiters;

pub use cancel::{Cancel, Cancelled, Deadline, Unwanted};
pub use gate::{Gate, GateGuard, RenewedGate};
pub use tokio::sync::{Notify, OwnedSemaphorePermit, RwLock, Semaphore, SemaphorePermit, mpsc, oneshot, watch};
