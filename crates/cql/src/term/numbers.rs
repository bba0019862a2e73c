//! The types of numbers.

use model::CqlType;

/// Whether values of a type are numbers.
pub fn is_number(ty: &CqlType) -> bool {
    use CqlType::*;
    matches!(ty, Tinyint | Smallint | Int | Bigint | Counter | Varint | Decimal | Float | Double)
}

/// The types of numbers that functions over all of them have a variant for.
pub const NUMBERS: [CqlType; 8] = [
    CqlType::Tinyint,
    CqlType::Smallint,
    CqlType::Int,
    CqlType::Bigint,
    CqlType::Float,
    CqlType::Double,
    CqlType::Varint,
    CqlType::Decimal,
];
