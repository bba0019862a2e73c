//! The hot partitions that a replica lists, by its real requests.

use crate::support::{Change, Query, Scratch, context, engine, key, read, schema};
use model::mutation::{Mutation, MutationBuilder};
use model::time::Tombstone;
use replica::hot::MOST_RECORDINGS;
use replica::{Class, Context, HotPartition, RateLimitMode, Replica, ReplicaConfig, ReplicaRequest};
use std::rc::Rc;
use std::time::Duration;

async fn replica(scratch: &Scratch) -> Rc<Replica> {
    let engine = engine(scratch).await;
    for k in 0..50 {
        Change::Row { k, a: 1, b: 1, size: if k == 3 { 100_000 } else { 10 } }.apply(&engine, 10);
    }
    Replica::new(engine, ReplicaConfig::with_memory(64 << 20))
}

fn deletion(k: i32) -> Mutation {
    let mut mutation = MutationBuilder::new(schema(1).id, schema(1).version, &k.to_be_bytes());
    mutation.delete_partition(Tombstone::new(1, 1));
    mutation.finish(&schema(1))
}

fn of(list: &[HotPartition], k: i32) -> &HotPartition {
    list.iter().find(|hot| hot.id.token == key(k).token).unwrap_or_else(|| panic!("{k} in {list:?}"))
}

#[test]
fn the_partitions_that_are_read_and_written_most_are_listed() {
    rt::block_on(async {
        let scratch = Scratch::new("hot");
        let replica = replica(&scratch).await;
        let began = rt::time::now();
        for round in 0..16_000 {
            let k = if round % 2 == 0 { 7 } else { round % 50 };
            let command = Query::of_key(1, k, 10).command(1, None).expect("a first page");
            read(&replica, &command, &context()).await.expect("is read");
            if round % 4 == 0 {
                replica.perform(&ReplicaRequest::write(deletion(9)), &context()).await.expect("is written");
            }
        }
        // A rate is per second of the time since the start, because the sums have not faded yet.
        rt::time::sleep(Duration::from_millis(200)).await;
        let seconds = began.elapsed().as_secs_f64();
        let list = replica.hot_partitions(10);
        let (seven, nine, three) = (of(&list, 7), of(&list, 9), of(&list, 3));
        assert_eq!(seven.key.as_deref(), Some(&key(7).key[..]));
        assert!(
            seven.reads > 8_000.0 / seconds * 0.7 && seven.reads < 8_000.0 / seconds * 1.3,
            "{seven:?} in {seconds}"
        );
        assert!(
            nine.writes > 4_000.0 / seconds * 0.6 && nine.writes < 4_000.0 / seconds * 1.4,
            "{nine:?} in {seconds}"
        );
        assert!(three.bytes > 10.0 * seven.bytes, "few reads of many bytes: {three:?}");
        assert!(list.iter().map(|hot| hot.cpu_share).sum::<f64>() <= 1.001 && seven.cpu_share > 0.05, "{list:?}");
        assert!(seven.error > 0.0 && seven.refused == 0.0 && seven.accepted == seven.reads, "{seven:?}");
    });
}

#[test]
fn a_node_s_own_work_is_not_listed() {
    rt::block_on(async {
        let scratch = Scratch::new("hot-own");
        let replica = replica(&scratch).await;
        let command = Query::of_key(1, 7, 10).command(1, None).expect("a first page");
        for class in [Class::System, Class::Maintenance] {
            let context = Context { class, rate_limit: RateLimitMode::Off, ..context() };
            for _ in 0..500 {
                read(&replica, &command, &context).await.expect("is read");
            }
        }
        rt::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(replica.hot_partitions(10), []);
    });
}

#[test]
fn a_recording_counts_all_operations_while_it_lasts() {
    rt::block_on(async {
        let scratch = Scratch::new("hot-recording");
        let replica = replica(&scratch).await;
        let recorder = replica.clone();
        let table = schema(1).id;
        let recording =
            rt::task::spawn(async move { recorder.top_partitions(vec![table], 16, Duration::from_millis(500)).await });
        rt::time::sleep(Duration::from_millis(50)).await;
        for k in [7, 7, 7, 8] {
            let command = Query::of_key(1, k, 10).command(1, None).expect("a first page");
            read(&replica, &command, &context()).await.expect("is read");
        }
        replica.perform(&ReplicaRequest::write(deletion(9)), &context()).await.expect("is written");
        let top = recording.await.expect("ends");
        let counts =
            |list: &[replica::hot::Recorded]| list.iter().map(|one| (one.key.clone(), one.count)).collect::<Vec<_>>();
        assert_eq!(counts(&top.reads), [(Some(key(7).key.to_vec().into()), 3), (Some(key(8).key.to_vec().into()), 1)]);
        assert_eq!(counts(&top.writes), [(Some(key(9).key.to_vec().into()), 1)]);
    });
}

#[test]
fn only_so_many_recordings_are_admitted_at_the_same_time() {
    rt::block_on(async {
        let scratch = Scratch::new("hot-admitted");
        let replica = replica(&scratch).await;
        let mut admitted: Vec<_> = (0..MOST_RECORDINGS).filter_map(|_| replica.admit_recording()).collect();
        assert_eq!(admitted.len(), MOST_RECORDINGS as usize);
        assert!(replica.admit_recording().is_none());
        admitted.pop();
        assert!(replica.admit_recording().is_some());
    });
}
