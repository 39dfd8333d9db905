//! The end of the validity of a certificate (RFC 5280, section 4.1.2.5). Nothing else of a certificate is read: whether it is
//! valid otherwise is up to rustls and to those who connect.

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Returns the time after which the certificate is not valid; `None` if it cannot be found.
pub fn certificate_end(der: &[u8]) -> Option<Timestamp> {
    let (certificate, _) = content(der, SEQUENCE)?;
    let (mut fields, _) = content(certificate, SEQUENCE)?;
    if fields.first() == Some(&VERSION) {
        fields = element(fields)?.rest;
    }
    // The serial number, the algorithm of the signature, and the issuer come before the validity.
    for _ in 0..3 {
        fields = element(fields)?.rest;
    }
    let (validity, _) = content(fields, SEQUENCE)?;
    let end = element(element(validity)?.rest)?;
    time(end.tag, end.content)
}

struct Element<'d> {
    tag: u8,
    content: &'d [u8],
    rest: &'d [u8],
}

/// Reads one element of DER: its tag, its length and its content.
fn element(der: &[u8]) -> Option<Element<'_>> {
    let (&tag, rest) = der.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first >= 0x80 {
        let (digits, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
        length = digits.iter().try_fold(0_usize, |length, digit| {
            length.checked_mul(256)?.checked_add(usize::from(*digit))
        })?;
        rest = after;
    }
    let (content, rest) = rest.split_at_checked(length)?;
    Some(Element { tag, content, rest })
}

fn content(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let found = element(der)?;
    (found.tag == tag).then_some((found.content, found.rest))
}

fn time(tag: u8, digits: &[u8]) -> Option<Timestamp> {
    let text = str::from_utf8(digits).ok()?;
    let text = match tag {
        // Two digits of the year: from 50 on they are those of the twentieth century.
        UTC_TIME => {
            let century = if text.get(..2)? < "50" { "20" } else { "19" };
            format!("{century}{text}")
        }
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let at = DateTime::strptime("%Y%m%d%H%M%SZ", &text).ok()?;
    Some(at.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_found_in_both_forms_of_times() {
        for (year, expected) in [
            (2031, "2031-02-03T00:00:00Z"),
            (2061, "2061-02-03T00:00:00Z"),
        ] {
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.not_after = date_time_ymd(year, 2, 3);
            let key = KeyPair::generate().unwrap();
            let certificate = params.self_signed(&key).unwrap();
            assert_eq!(
                certificate_end(certificate.der()).unwrap().to_string(),
                expected
            );
        }
    }

    #[test]
    fn bytes_that_are_no_certificate_have_no_end() {
        for bytes in [
            &b""[..],
            b"0",
            b"0\x80",
            b"0\x82\xff\xff",
            b"not a certificate",
            &[0x30, 0xff, 1, 2],
        ] {
            assert_eq!(certificate_end(bytes), None, "{bytes:?}");
        }
    }
}
