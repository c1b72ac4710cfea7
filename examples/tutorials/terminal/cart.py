def total(prices: list[float], discount: float = 0.0) -> float:
    result = 0.0
    for price in prices:
        result += price
    return result * discount
