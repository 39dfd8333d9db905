//! Numbers: whole numbers of up to 128 bits, all others in floating point.

use std::cmp::Ordering;

use super::{
    Budget,
    eval_error::{EvalResult, other},
};

#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Int(Int),
    Float(f64),
}

/// Packed, so that a value takes 24 bytes and not 32.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(8))]
pub(super) struct Int(i128);

impl Number {
    pub fn int(number: i128) -> Self {
        Number::Int(Int(number))
    }

    pub fn is_zero(self) -> bool {
        match self {
            Number::Int(Int(number)) => number == 0,
            Number::Float(number) => number == 0.0,
        }
    }

    pub fn is_int(self) -> bool {
        matches!(self, Number::Int(_))
    }

    /// Returns `None` for a fraction, and for a number that is too large.
    pub fn as_int(self) -> Option<i128> {
        match self {
            Number::Int(Int(number)) => Some(number),
            Number::Float(number) if number.trunc() == number && number.abs() < 1e38 => {
                Some(number as i128)
            }
            Number::Float(_) => None,
        }
    }

    pub fn as_float(self) -> f64 {
        match self {
            Number::Int(Int(number)) => number as f64,
            Number::Float(number) => number,
        }
    }

    /// Compares numbers in a total order; a whole number and a float of the same value are equal.
    pub fn order(self, other: Self) -> Ordering {
        match (self, other) {
            (Number::Int(Int(a)), Number::Int(Int(b))) => a.cmp(&b),
            (Number::Float(a), Number::Float(b)) if a == b => Ordering::Equal,
            (Number::Float(a), Number::Float(b)) => a.total_cmp(&b),
            (Number::Int(Int(a)), Number::Float(b)) => int_with_float(a, b),
            (Number::Float(a), Number::Int(Int(b))) => int_with_float(b, a).reverse(),
        }
    }

    /// Writes the number as JSON.
    pub fn write(self, out: &mut String) -> EvalResult<()> {
        match self {
            Number::Int(Int(number)) => {
                out.push_str(&number.to_string());
                Ok(())
            }
            Number::Float(number) if number.is_finite() => {
                // The shortest text that is read as the same number.
                out.push_str(&serde_json::Value::from(number).to_string());
                Ok(())
            }
            Number::Float(_) => other("the result is not a finite number"),
        }
    }
}

fn int_with_float(a: i128, b: f64) -> Ordering {
    // A float of this size has no fraction, and may be greater than all whole numbers.
    if b.abs() >= 1.7e38 {
        return (a as f64).total_cmp(&b);
    }
    let whole = b.trunc();
    a.cmp(&(whole as i128))
        .then_with(|| whole.partial_cmp(&b).unwrap_or(Ordering::Equal))
}

/// Returns the cost of reading a decimal in addition to its bytes. Up to 19 digits are rounded by a multiplication. If
/// a decimal has more digits and is between two floating-point numbers, the library computes with all of them: it
/// shifts them by some 18 decimal places at a time until the point is in its final position, and each shift reads all
/// digits.
pub(super) fn rounding(text: &str) -> u64 {
    /// The most digits that the library keeps.
    const MOST_DIGITS: i64 = 768;
    /// The largest exponent that the library computes with.
    const FARTHEST: i64 = 350;
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse().unwrap_or(FARTHEST)),
        None => (text, 0),
    };
    let (mut digits, mut point, mut is_fraction) = (0i64, 0i64, false);
    for byte in mantissa.bytes() {
        match byte {
            b'.' => is_fraction = true,
            b'0' if digits == 0 => point -= i64::from(is_fraction),
            b'0'..=b'9' => {
                digits += 1;
                point += i64::from(!is_fraction);
            }
            _ => {}
        }
    }
    if digits <= 19 {
        return 0;
    }
    let far = point
        .saturating_add(exponent)
        .saturating_abs()
        .min(FARTHEST);
    let cost = 2 * (digits.min(MOST_DIGITS) + far) * (far / 18 + 4);
    // The cost is positive.
    cost.unsigned_abs()
}

/// Parses a number of a JSON document.
pub(super) fn parse_json(json: &str, budget: &Budget) -> EvalResult<Number> {
    budget.charge(json.len() as u64 * 2)?;
    let is_int = !json.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E'));
    if is_int && json != "-0" {
        // Most numbers are short.
        if let Ok(number) = json.parse::<i64>() {
            return Ok(Number::int(number.into()));
        }
        // In floating point it would silently be another number.
        return match json.parse::<i128>() {
            Ok(number) => Ok(Number::int(number)),
            Err(_) => other(beyond_int(json)),
        };
    }
    budget.charge(rounding(json))?;
    match json.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(Number::Float(number)),
        _ => other("it reads a number that is too large for arithmetic"),
    }
}

/// Returns the message for a number that is too long. Its digits may be part of a secret, so the message has only their
/// number.
fn beyond_int(json: &str) -> String {
    let digits = json.trim_start_matches('-').len();
    format!(
        "it reads a whole number of {digits} digits, and expressions are exact up to 128 bits only: write it as a text, or with an exponent if it may be rounded"
    )
}

/// Rounds a whole number to the nearest multiple of a power of ten, halves to the even multiple; or to the next
/// multiple up or down. `None` if the result has more than 128 bits.
pub(super) fn round_int(number: i128, zeros: u32, direction: Rounding) -> Option<i128> {
    let factor = 10i128.checked_pow(zeros)?;
    let (below, rest) = (number.div_euclid(factor), number.rem_euclid(factor));
    let is_up = match direction {
        Rounding::Down => false,
        Rounding::Up => rest != 0,
        Rounding::Nearest => match rest.cmp(&(factor - rest)) {
            Ordering::Less => false,
            Ordering::Equal => below % 2 != 0,
            Ordering::Greater => true,
        },
    };
    (below + i128::from(is_up)).checked_mul(factor)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rounding {
    Nearest,
    Up,
    Down,
}

/// Returns the whole part of a decimal without an exponent, exactly.
pub(super) fn whole_part(decimal: &str) -> Option<i128> {
    let (whole, fraction) = decimal.split_once('.')?;
    let is_plain = fraction.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| whole.parse().ok())?
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

impl Arithmetic {
    pub fn symbol(self) -> &'static str {
        match self {
            Arithmetic::Add => "+",
            Arithmetic::Subtract => "-",
            Arithmetic::Multiply => "*",
            Arithmetic::Divide => "/",
            Arithmetic::FloorDivide => "//",
            Arithmetic::Remainder => "%",
            Arithmetic::Power => "**",
        }
    }

    pub fn apply(self, a: Number, b: Number) -> EvalResult<Number> {
        let result = match (a, b) {
            (Number::Int(Int(a)), Number::Int(Int(b))) => self.on_ints(a, b),
            _ => self.on_floats(a.as_float(), b.as_float()),
        };
        let is_division = matches!(
            self,
            Arithmetic::Divide | Arithmetic::FloorDivide | Arithmetic::Remainder
        );
        match result {
            Some(number) => Ok(number),
            None if is_division && b.is_zero() => {
                other(format!("`{}` by zero has no result", self.symbol()))
            }
            None if self == Arithmetic::Power && a.is_zero() => {
                other("zero to the power of a negative number has no result: it divides by zero")
            }
            None if self == Arithmetic::Power && a.as_float() < 0.0 && b.as_int().is_none() => {
                other("a negative number to the power of a fraction has no real result")
            }
            None => other(format!(
                "the result of `{}` is too large to compute with",
                self.symbol()
            )),
        }
    }

    fn on_ints(self, a: i128, b: i128) -> Option<Number> {
        let int = match self {
            Arithmetic::Add => a.checked_add(b),
            Arithmetic::Subtract => a.checked_sub(b),
            Arithmetic::Multiply => a.checked_mul(b),
            Arithmetic::Divide => return self.on_floats(a as f64, b as f64),
            Arithmetic::FloorDivide => floor_divide(a, b).map(|(quotient, _)| quotient),
            Arithmetic::Remainder => floor_divide(a, b).map(|(_, remainder)| remainder),
            Arithmetic::Power if b < 0 => return self.on_floats(a as f64, b as f64),
            Arithmetic::Power => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
        };
        int.map(Number::int)
    }

    fn on_floats(self, a: f64, b: f64) -> Option<Number> {
        let float = match self {
            Arithmetic::Add => a + b,
            Arithmetic::Subtract => a - b,
            Arithmetic::Multiply => a * b,
            Arithmetic::Divide => a / b,
            Arithmetic::FloorDivide => (a / b).floor(),
            Arithmetic::Remainder => {
                let remainder = a % b;
                if remainder != 0.0 && (remainder < 0.0) != (b < 0.0) {
                    remainder + b
                } else {
                    remainder
                }
            }
            Arithmetic::Power => a.powf(b),
        };
        let is_division = matches!(
            self,
            Arithmetic::Divide | Arithmetic::FloorDivide | Arithmetic::Remainder
        );
        (float.is_finite() && !(is_division && b == 0.0)).then_some(Number::Float(float))
    }
}

fn floor_divide(a: i128, b: i128) -> Option<(i128, i128)> {
    let (quotient, remainder) = (a.checked_div(b)?, a.checked_rem(b)?);
    if remainder != 0 && (remainder < 0) != (b < 0) {
        Some((quotient.checked_sub(1)?, remainder.checked_add(b)?))
    } else {
        Some((quotient, remainder))
    }
}

pub(super) fn negate(number: Number) -> EvalResult<Number> {
    match number {
        Number::Int(Int(number)) => match number.checked_neg() {
            Some(number) => Ok(Number::int(number)),
            None => other("the result of `-` is too large to compute with"),
        },
        Number::Float(number) => Ok(Number::Float(-number)),
    }
}
