//! Property test: the ranges of a clustering restriction contain exactly the rows for which it is
//! true, for all orders of the columns.

use super::Clustering;
use super::clustering::Tuple;
use super::{InList, Op, Rows, Sameness};
use crate::api::{BoundValue, ColumnSpec};
use crate::term::{Env, Term};
use bytes::Bytes;
use model::key;
use model::options::TableOptions;
use model::schema::{Column, ColumnKind, TableSchema};
use model::types::collection;
use model::{ColumnId, CqlType, SchemaVersion, TableId};
use proptest::prelude::*;
use smallvec::smallvec;

const COLUMNS: usize = 3;
const VALUES: i32 = 3;

fn column(kind: ColumnKind, name: &str, descending: bool) -> Column {
    Column { id: ColumnId(0), name: name.into(), kind, position: 0, ty: CqlType::Int, descending }
}

fn schema(descending: &[bool]) -> TableSchema {
    let clustering = descending.iter().enumerate().map(|(i, d)| column(ColumnKind::Clustering, &format!("c{i}"), *d));
    TableSchema::new(
        TableId::from_bytes([1; 16]),
        SchemaVersion::from_bytes([2; 16]),
        "ks",
        "t",
        vec![column(ColumnKind::PartitionKey, "p", false)],
        clustering.collect(),
        Vec::new(),
        Vec::new(),
        Vec::new(),
        TableOptions::default(),
    )
}

fn term(value: i32) -> Term {
    Term::Constant(Bytes::copy_from_slice(&value.to_be_bytes()))
}

fn terms(values: &[i32]) -> Vec<Term> {
    values.iter().copied().map(term).collect()
}

fn row_key(row: &[i32]) -> key::Clustering {
    let components: Vec<[u8; 4]> = row.iter().map(|value| value.to_be_bytes()).collect();
    key::Clustering::from_components(components.iter().map(|component| &component[..]))
}

fn every_row() -> impl Iterator<Item = Vec<i32>> {
    (0..VALUES.pow(COLUMNS as u32)).map(|n| vec![n / (VALUES * VALUES), n / VALUES % VALUES, n % VALUES])
}

/// One relation as data: its operator and the values on its right.
#[derive(Clone, Debug)]
enum Relation {
    Eq(Vec<i32>),
    Lower(Vec<i32>, bool),
    Upper(Vec<i32>, bool),
}

impl Relation {
    fn holds(&self, row: &[i32]) -> bool {
        match self {
            Relation::Eq(values) => row[..values.len()] == values[..],
            Relation::Lower(values, inclusive) => {
                let left = &row[..values.len()];
                left > &values[..] || (*inclusive && left == &values[..])
            }
            Relation::Upper(values, inclusive) => {
                let left = &row[..values.len()];
                left < &values[..] || (*inclusive && left == &values[..])
            }
        }
    }

    fn as_tuple(&self) -> Tuple {
        match self {
            Relation::Eq(values) => Tuple::Eq(terms(values)),
            Relation::Lower(values, inclusive) => Tuple::Lower(terms(values), *inclusive),
            Relation::Upper(values, inclusive) => Tuple::Upper(terms(values), *inclusive),
        }
    }
}

fn values() -> impl Strategy<Value = Vec<i32>> {
    proptest::collection::vec(0..VALUES, 1..=COLUMNS)
}

fn relation() -> impl Strategy<Value = Relation> {
    prop_oneof![
        values().prop_map(Relation::Eq),
        (values(), any::<bool>()).prop_map(|(values, inclusive)| Relation::Lower(values, inclusive)),
        (values(), any::<bool>()).prop_map(|(values, inclusive)| Relation::Upper(values, inclusive)),
    ]
}

fn check(schema: &TableSchema, clustering: &Clustering, holds: impl Fn(&[i32]) -> bool) -> Result<(), TestCaseError> {
    let rows = clustering.evaluate(schema, Env::EMPTY, false).unwrap();
    if let Rows::Keys(keys) = &rows {
        prop_assert!(keys.windows(2).all(|pair| schema.order.compare_rows(&pair[0], &pair[1]).is_lt()), "{keys:?}");
    }
    let ranges = rows.into_ranges();
    prop_assert!(ranges.windows(2).all(|pair| pair[0].end.cmp(&schema.order, &pair[1].start).is_le()), "{ranges:?}");
    for row in every_row() {
        let key = row_key(&row);
        let found = ranges.iter().filter(|range| range.contains(&schema.order, &key)).count();
        prop_assert_eq!(found, usize::from(holds(&row)), "{:?} in {:?}", row, ranges);
    }
    Ok(())
}

proptest! {
    #[test]
    fn tuples_hold_their_rows(
        descending in proptest::collection::vec(any::<bool>(), COLUMNS),
        relations in proptest::collection::vec(relation(), 1..4),
    ) {
        let clustering = Clustering::Tuples(relations.iter().map(Relation::as_tuple).collect());
        check(&schema(&descending), &clustering, |row| relations.iter().all(|relation| relation.holds(row)))?;
    }

    #[test]
    fn columns_hold_their_rows(
        descending in proptest::collection::vec(any::<bool>(), COLUMNS),
        prefix in proptest::collection::vec(proptest::collection::vec(0..VALUES, 0..4), 0..=COLUMNS),
        bounds in proptest::collection::vec((any::<bool>(), 0..VALUES, any::<bool>()), 0..4),
    ) {
        let sliced = prefix.len() < COLUMNS && !bounds.is_empty();
        let slice: Box<[Op]> = bounds
            .iter()
            .filter(|_| sliced)
            .map(|(lower, value, inclusive)| {
                if *lower { Op::Lower(term(*value), *inclusive) } else { Op::Upper(term(*value), *inclusive) }
            })
            .collect();
        let ops = prefix.iter().map(|values| smallvec![Op::In(super::InList::Terms(terms(values)))]).collect();
        let clustering = Clustering::Columns { prefix: ops, slice };
        check(&schema(&descending), &clustering, |row| {
            let in_prefix = prefix.iter().zip(row).all(|(values, value)| values.contains(value));
            let in_slice = !sliced || bounds.iter().all(|(lower, bound, inclusive)| {
                let value = row[prefix.len()];
                let beyond = if *lower { value > *bound } else { value < *bound };
                beyond || (*inclusive && value == *bound)
            });
            in_prefix && in_slice
        })?;
    }
}

#[test]
fn partition_keys_are_the_same_by_their_bytes_and_rows_by_their_order() {
    let decimal = |scale: i32, unscaled: u8| Bytes::from([&scale.to_be_bytes()[..], &[unscaled]].concat());
    let (one, also_one, two) = (decimal(0, 1), decimal(1, 10), decimal(0, 2));
    let terms = [&two, &also_one, &one, &one].map(|value| Term::Constant(value.clone())).to_vec();
    let ops = [Op::In(InList::Terms(terms))];
    let env = Env { values: &[], variables: &[] };
    let by = |same| super::values(&ops, &CqlType::Decimal, "p", same, env, false).expect("good values");
    let keys = by(Sameness::Bytes);
    assert_eq!((keys.len(), &keys[2]), (3, &two));
    assert!(keys.contains(&one) && keys.contains(&also_one));
    assert_eq!(by(Sameness::Order).len(), 2);
}

#[test]
fn tuples_that_are_equal_by_order_are_one_row() {
    let decimal = |scale: i32, unscaled: u8| Bytes::from([&scale.to_be_bytes()[..], &[unscaled]].concat());
    let constant = |value: &Bytes| vec![Term::Constant(value.clone())];
    let (one, also_one, two) = (decimal(0, 1), decimal(1, 10), decimal(0, 2));
    let mut schema = schema(&[false]);
    schema.clustering[0].ty = CqlType::Decimal;
    let schema = TableSchema::new(
        schema.id,
        schema.version,
        "ks",
        "t",
        schema.partition_key,
        schema.clustering,
        Vec::new(),
        Vec::new(),
        Vec::new(),
        TableOptions::default(),
    );
    let rows = |tuple: Tuple, env: Env<'_>| {
        let clustering = Clustering::Tuples([tuple].into());
        match clustering.evaluate(&schema, env, true).expect("good values") {
            Rows::Keys(keys) => keys.len(),
            Rows::Ranges(ranges) => panic!("{ranges:?}"),
        }
    };
    let given = [&also_one, &two, &one, &also_one];
    assert_eq!(rows(Tuple::In(given.map(constant).into()), Env::EMPTY), 2);
    let list = collection::build_list(given.map(|value| collection::build_tuple([Some(value)])));
    let values = [BoundValue::Value(list.into())];
    let ty = CqlType::list(CqlType::tuple([CqlType::Decimal]));
    let variables = [ColumnSpec { keyspace: "ks".into(), table: "t".into(), name: "in".to_owned(), ty }];
    let env = Env { values: &values, variables: &variables };
    assert_eq!(rows(Tuple::InList(Term::Variable(0), 1), env), 2);
}
