"""A model to keep in memory. It learns the sine of numbers between -pi and pi."""

import math

import torch
from torch import nn


def trained() -> nn.Module:
    """Returns a network of 1,153 parameters after 400 steps of training. The result is always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    x = torch.linspace(-math.pi, math.pi, 256).unsqueeze(1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(400):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), torch.sin(x)).backward()
        optimizer.step()
    return net.eval()
