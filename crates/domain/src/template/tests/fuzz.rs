//! No evaluation costs more than its bounds: neither in memory, which is counted by an allocator that replaces the
//! service's in tests, nor in work. Time is not asserted, because other tests run at the same time; the longer run,
//! `scripts/fuzz-expressions`, reports it.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use allocation_counter::measure;

use super::{generator::Generator, *};

/// The most memory that an evaluation may hold at once, in bytes. It includes the expression and the result, and some
/// slack for memory that is not charged by the byte.
const MOST_MEMORY: u64 = (16 << 20) + (1 << 16);

/// The longest processor time in a release build: an evaluation with a constant part has two budgets of 20 ms, and a
/// small server is half as fast as the one on which they were measured.
const LONGEST: Duration = Duration::from_millis(100);

struct Worst {
    time: Duration,
    /// Nanoseconds for each unit, if the evaluation took at least a millisecond. Much more than one means that a cost
    /// is not charged.
    per_unit: f64,
    memory: u64,
    by: [String; 3],
}

/// Evaluates random expressions while `goes_on` returns true. `sizes` are the sizes of the documents.
fn run(seed: u64, sizes: &[usize], mut goes_on: impl FnMut(u64) -> bool) -> (u64, Worst) {
    let mut worst = Worst {
        time: Duration::ZERO,
        per_unit: 0.0,
        memory: 0,
        by: Default::default(),
    };
    let mut count = 0;
    while goes_on(count) {
        // Each expression has its own seed, so that it can be run again alone.
        let own = seed + count;
        let mut generator = Generator::new(own);
        let size = sizes[own as usize % sizes.len()];
        let mut data = data();
        data.input = payload(&generator.document(size));
        let output = payload(&generator.document(size / 4));
        data.steps.push((StepName::new("a"), Some(output)));
        let expression = generator.expression();
        count += 1;
        let once = || {
            let began = processor_time();
            let source = format!("{{{{ {expression} }}}}");
            let reading = Budget::evaluation();
            if let Ok(template) = Template::parse(&source, Origin::Submitted(&reading)) {
                let scope = data.scope();
                let _ = template.render_json(&scope, &mut Out::new(scope.budget));
            }
            (
                processor_time() - began,
                data.budget.spent() + reading.spent(),
            )
        };
        let (mut time, mut spent) = (Duration::ZERO, 0);
        let memory = measure(|| (time, spent) = once());
        let per_unit = |time: Duration, spent: u64| match time > Duration::from_millis(1) {
            true => time.as_nanos() as f64 / spent.max(1) as f64,
            false => 0.0,
        };
        if time > worst.time || per_unit(time, spent) > worst.per_unit {
            // The time includes other work of the system: the shortest of several runs is reported.
            let again = (0..6).map(|_| once()).min();
            (time, spent) = again.unwrap_or((time, spent)).min((time, spent));
        }
        if per_unit(time, spent) > worst.per_unit {
            worst.per_unit = per_unit(time, spent);
            worst.by[2].clone_from(&expression);
            worst.by[2] += &format!(" (seed {own}, {time:?})");
        }
        // Parsing evaluates constant parts with a budget of their own; their memory is freed.
        let held = memory.bytes_max;
        assert!(
            held <= MOST_MEMORY,
            "seed {own}: {held} bytes were held by: {expression}"
        );
        assert!(
            memory.bytes_total <= 2 * spent + 2 * Budget::EVALUATION / 16 + (1 << 16)
                || expression_is_constant(&expression),
            "seed {own}: {} bytes were allocated and {spent} units charged by: {expression}",
            memory.bytes_total
        );
        if time > worst.time {
            worst.time = time;
            worst.by[0] = format!("{expression} (seed {own})");
        }
        if held > worst.memory {
            worst.memory = held;
            worst.by[1].clone_from(&expression);
        }
    }
    (count, worst)
}

/// Returns the processor time of this thread, exact to some milliseconds; on a system without this value, the elapsed
/// time.
fn processor_time() -> Duration {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = told.and_then(|told| told.split(' ').next()?.parse().ok());
    nanos.map_or_else(|| BEGAN.elapsed(), Duration::from_nanos)
}

fn expression_is_constant(expression: &str) -> bool {
    !["input", "steps", "task"]
        .iter()
        .any(|name| expression.contains(name))
}

#[test]
fn no_evaluation_costs_more_than_it_may() {
    let seed = std::env::var("PROVOST_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    run(seed, &[2_000, 20_000, 200_000], |count| count < 150);
}

/// `scripts/fuzz-expressions` runs this test.
#[test]
#[ignore = "as long as it is asked to"]
fn fuzz_for_long() {
    let var =
        |name: &str, usual: u64| std::env::var(name).map_or(usual, |value| value.parse().unwrap());
    let (seconds, seed) = (var("FUZZ_SECONDS", 60), var("FUZZ_SEED", 1));
    let ends = Instant::now() + Duration::from_secs(seconds);
    let (count, worst) = run(seed, &[2_000, 100_000, 1_000_000], |_| {
        Instant::now() < ends
    });
    println!("{count} expressions from seed {seed}");
    println!("dearest unit: {} ns by: {}", worst.per_unit, worst.by[2]);
    println!("longest: {:?} by: {}", worst.time, worst.by[0]);
    println!("largest: {} bytes by: {}", worst.memory, worst.by[1]);
    assert!(
        worst.time < LONGEST,
        "an evaluation took longer than {LONGEST:?}: look for what it does not charge"
    );
}
