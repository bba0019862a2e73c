//! The compactions that administrators start: major compaction, which merges everything, and
//! cleanup, which drops data that the shard does not own any more.

use super::controller::candidates;
use super::options::Options;
use super::picker::pick_all;
use super::progress::CompactionKind;
use super::task::{Claimed, Plan};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::table::{Attached, Table, Tablet};
use model::TableId;
use std::rc::Rc;

impl Engine {
    /// Flushes a table, and merges all sstables of each of its tablets to the extent that its
    /// strategy allows: into one sstable, into one level, or into one sstable for each time window.
    pub async fn compact_major(&self, table: TableId) -> Result<(), EngineError> {
        let table = self.table_or_error(table)?;
        self.detached(|engine| async move { engine.compact_all_tablets(&table).await }).await
    }

    /// No tombstone may be purged before the old commitlogs are removed: replay would restore the
    /// data that the purged tombstone covered.
    fn check_started(&self) -> Result<(), EngineError> {
        if self.is_started() { Ok(()) } else { Err(EngineError::OldLogsNeeded) }
    }

    async fn compact_all_tablets(&self, table: &Rc<Table>) -> Result<(), EngineError> {
        self.check_started()?;
        self.flush(Some(table.schema().id)).await?;
        let _paused = table.pause_compactions();
        table.stop_compactions().await;
        for tablet in table.tablets().iter() {
            while let Err(error) = self.compact_tablet(table, tablet).await {
                self.resume_after_snapshot(table, tablet, error).await?;
            }
        }
        Ok(())
    }

    /// Merges the sstables of a tablet as its strategy allows.
    async fn compact_tablet(&self, table: &Rc<Table>, tablet: &Rc<Tablet>) -> Result<(), EngineError> {
        let schema = table.schema();
        let (sstables, candidates) = candidates(tablet, &schema, rt::time::wall_seconds());
        let picks = pick_all(&candidates, &Options::of(&schema.options.compaction));
        // All inputs are claimed before the first compaction begins, so that no other request takes
        // one.
        let plans: Vec<Plan> = picks
            .into_iter()
            .map(|pick| Plan {
                kind: CompactionKind::Compaction,
                inputs: Claimed::new(pick.inputs.into_iter().map(|i| sstables[i].clone()).collect()),
                level: pick.level,
                split: pick.split,
                moves: false,
                expired: false,
            })
            .collect();
        for plan in plans {
            self.compact(table, tablet, &plan, &table.compaction_cancel()).await?;
        }
        Ok(())
    }

    /// Waits until a compaction that a snapshot stopped may begin again.
    ///
    /// # Errors `error`, if the compaction failed for another reason.
    async fn resume_after_snapshot(
        &self,
        table: &Table,
        tablet: &Rc<Tablet>,
        error: EngineError,
    ) -> Result<(), EngineError> {
        if !matches!(error, EngineError::Cancelled) || self.stopping().is_cancelled() {
            return Err(error);
        }
        drop(table.snapshot_turn.acquire().await);
        // Data is being removed, or the tablet or the table.
        let is_served = table.tablets().iter().any(|own| Rc::ptr_eq(own, tablet));
        if table.excludes_compactions() || table.work.is_closed() || !is_served { Err(error) } else { Ok(()) }
    }

    /// Rewrites the sstables of a table that hold keys outside of their tablet, without those keys.
    /// Returns how many were rewritten.
    pub async fn cleanup(&self, table: TableId) -> Result<usize, EngineError> {
        let table = self.table_or_error(table)?;
        self.detached(|engine| async move { engine.clean_up(&table).await }).await
    }

    async fn clean_up(&self, table: &Rc<Table>) -> Result<usize, EngineError> {
        self.check_started()?;
        let is_foreign = |tablet: &Tablet, own: &Attached| {
            [own.sstable.first_key(), own.sstable.last_key()].iter().any(|key| !tablet.range.contains(key))
        };
        let mut cleaned = 0;
        for tablet in table.tablets().iter() {
            if !tablet.sstables().iter().any(|own| is_foreign(tablet, own)) {
                continue;
            }
            let _paused = table.pause_compactions();
            table.stop_compactions().await;
            let foreign: Vec<_> =
                tablet.sstables().iter().filter(|own| own.is_free() && is_foreign(tablet, own)).cloned().collect();
            for own in foreign {
                let plan = Plan {
                    kind: CompactionKind::Cleanup,
                    level: own.sstable.stats().level,
                    inputs: Claimed::new(vec![own]),
                    split: None,
                    moves: false,
                    expired: false,
                };
                while let Err(error) = self.compact(table, tablet, &plan, &table.compaction_cancel()).await {
                    self.resume_after_snapshot(table, tablet, error).await?;
                }
                cleaned += 1;
            }
        }
        Ok(cleaned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineConfig;
    use crate::engine::TabletRange;
    use bytes::Bytes;
    use model::key::{Clustering, DecoratedKey};
    use model::mutation::MutationBuilder;
    use model::options::TableOptions;
    use model::range::PartitionRange;
    use model::row::{Marker, RowBuilder};
    use model::schema::{Column, ColumnKind, TableSchema};
    use model::time::Tombstone;
    use model::{ColumnId, CqlType, HostId, SchemaVersion, Token};
    use rt::ShardId;
    use test_support::Scratch;
    use uuid::Uuid;

    fn schema() -> Rc<TableSchema> {
        let key = Column {
            id: ColumnId(0),
            name: "k".into(),
            kind: ColumnKind::PartitionKey,
            position: 0,
            ty: CqlType::Int,
            descending: false,
        };
        let mut options = TableOptions::default();
        options.compaction.insert("enabled".into(), "false".into());
        let (id, version) = (TableId(Uuid::from_u128(1)), SchemaVersion(Uuid::from_u128(2)));
        Rc::new(TableSchema::new(id, version, "ks", "t", vec![key], vec![], vec![], vec![], vec![], options))
    }

    #[test]
    fn cleanup_drops_what_lies_outside_the_tablet() {
        rt::block_on(async {
            let scratch = Scratch::new("cleanup");
            let config = EngineConfig::new(scratch.to_path_buf(), ShardId(0), HostId(Uuid::from_u128(3)), 16 << 20);
            let engine = Engine::open(config).await.unwrap();
            let schema = schema();
            let whole = TabletRange { id: 0, range: PartitionRange::FULL };
            engine.add_table(schema.clone(), vec![whole]).await.unwrap();
            for k in 0..40i32 {
                let key = DecoratedKey::new(Bytes::copy_from_slice(&k.to_be_bytes()));
                let mut builder = MutationBuilder::new(schema.id, schema.version, &k.to_be_bytes());
                let row = RowBuilder::new(Some(Marker::new(1)), Tombstone::LIVE).finish();
                builder.row(Clustering::from_components([]), row);
                engine.apply_durably(&builder.finish(&schema), &key).await.unwrap();
            }
            engine.flush(None).await.unwrap();
            assert!(matches!(engine.cleanup(schema.id).await, Err(EngineError::OldLogsNeeded)), "replay is not over");
            assert!(matches!(engine.compact_major(schema.id).await, Err(EngineError::OldLogsNeeded)));
            engine.start();
            assert_eq!(engine.cleanup(schema.id).await.unwrap(), 0, "all of it is owned");

            let table = engine.table_or_error(schema.id).unwrap();
            let before = table.tablets()[0].sstables();
            // The half of the ring that the tablet keeps.
            let range = PartitionRange::tokens(Token::MIN, Token(0));
            let (pool, rows) = (engine.pool().clone(), engine.rows().clone());
            let tablet = Tablet::new(0, range, table.tablets()[0].slot, pool, rows, (*before).clone());
            let dir = table.dir.clone();
            let narrow = Table::new(schema.clone(), dir, vec![tablet.clone()], Vec::new(), Vec::new());
            let partitions = |set: &crate::table::SstableSet| set.iter().map(|own| own.partitions()).sum::<u64>();
            assert_eq!((partitions(&before), before.len()), (40, 1));
            assert_eq!(engine.clean_up(&narrow).await.unwrap(), 1);
            let after = tablet.sstables();
            assert!((1..40).contains(&partitions(&after)) && after.len() == 1);
            assert!(after.iter().all(|own| own.sstable.last_key().token <= Token(0)));
            assert_eq!(engine.clean_up(&narrow).await.unwrap(), 0);
            let kinds: Vec<_> = engine.compaction_history().iter().map(|record| record.kind()).collect();
            assert_eq!(kinds, [Some(CompactionKind::Cleanup)]);
            engine.abandon().await;
        });
    }
}
