//! The row cache of a tablet that moves. The source knows which rows are read often. The receiver
//! reads them in before it serves reads of the tablet, so that its first reads are not all from
//! disk.

use crate::engine::Engine;
use crate::error::ReadError;
use crate::reader::ReadOptions;
use bytes::Bytes;
use model::TableId;
use model::key::DecoratedKey;
use model::range::{PartitionRange, Slice};
use rt::fs::IoClass;
use sstable::ReadId;
use std::rc::Rc;

impl Engine {
    /// The keys of a tablet whose rows are in the row cache and were read there lately, in the
    /// order of the ring: at most `most` bytes of keys. Empty for tables that have no cached rows.
    pub async fn hot_keys(&self, table: TableId, tablet: u32, most: usize) -> Vec<Bytes> {
        let tablets = self.table(table).map(|table| table.tablets());
        let tablet = tablets.iter().flat_map(|tablets| tablets.iter()).find(|own| own.id == tablet).cloned();
        let Some(tablet) = tablet else { return Vec::new() };
        let (rows, own) = tablet.cached();
        let (mut keys, mut bytes) = (Vec::new(), 0);
        for piece in 0.. {
            let Some(used) = rows.used_keys(own, piece) else { break };
            keys.extend(used.into_iter().take_while(|(_, key)| {
                bytes += key.len();
                bytes <= most
            }));
            if bytes > most {
                break;
            }
            rt::task::maybe_yield().await;
        }
        keys.sort_unstable_by_key(|(token, _)| *token);
        keys.into_iter().map(|(_, key)| key).collect()
    }

    /// Reads the rows of these keys, so that they are in the row cache. Keys that are not on this
    /// shard have no rows.
    pub async fn read_in(&self, table: TableId, keys: &[Bytes]) -> Result<(), ReadError> {
        let slice = Rc::new(Slice::full());
        for key in keys {
            let range = PartitionRange::singular(&DecoratedKey::new(key.clone()));
            let options =
                ReadOptions { class: IoClass::Background, fill_cache: true, bypass: false, read: ReadId::NONE };
            let mut reader = self.reader(table, range, slice.clone(), options)?;
            while reader.pop().is_some() || reader.advance().await? {}
            rt::task::maybe_yield().await;
        }
        Ok(())
    }
}
