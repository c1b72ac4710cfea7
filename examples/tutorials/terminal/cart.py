def total(prices, discount=0.0):
    result = 0.0
    for price in prices:
        result += price
    return result * discount
