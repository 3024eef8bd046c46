"""What bench_at_rest holds to its limits."""

from benchmarks.bench_at_rest import Usage, report


def test_cpu_is_judged_per_minute() -> None:
    usages = [
        Usage("daemon", cpu_s=4.0, pss_mb=100, rss_mb=100),
        Usage("web", cpu_s=2.5, pss_mb=100, rss_mb=100),
    ]
    assert [limit.split(":")[0] for limit in report(usages, seconds=120).broken] == [
        "2 processes, CPU a minute, over 120 s"
    ]
    assert report(usages, seconds=130).broken == []


def test_memory_is_judged_by_pss_and_without_it_by_rss() -> None:
    shared = [
        Usage("one", cpu_s=0, pss_mb=450, rss_mb=600),
        Usage("two", cpu_s=0, pss_mb=450, rss_mb=600),
    ]
    assert report(shared, seconds=60).broken == []
    unknown = [
        Usage("one", cpu_s=0, pss_mb=None, rss_mb=600),
        Usage("two", cpu_s=0, pss_mb=450, rss_mb=600),
    ]
    assert [limit.split(",")[1].strip() for limit in report(unknown, seconds=60).broken] == [
        "memory"
    ]
